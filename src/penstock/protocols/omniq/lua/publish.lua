-- needs: base mirror lanes
-- publish: put jobs on the queue, each unless its id is alive. Answers how many were kept as they
-- were, then which (0-based). ARGV: now, then per job id, payload, gid, max_attempts, timeout_ms,
-- backoff_ms, due_ms, group_limit.

local now = clock(ARGV[1])

local function forget(id, state)
  if state == 'completed' then
    if call('LREM', base .. ':completed', 1, id) == 1 then kept(call('LLEN', base .. ':completed')) end
  elseif state == 'failed' then
    if call('LREM', base .. ':failed', 1, id) == 1 then tally('failed', -1) end
  end
  left(state, id)
  call('DEL', job_key(id))
end

local function set_limit(gid, limit)
  call('SET', base .. ':has_groups', '1')
  if int(limit, 0) <= 0 then return end
  if call('SET', group_key(gid, 'limit'), limit, 'NX') then ready_if_possible(gid, now) end
end

local function enqueue(id, payload, gid, max_attempts, timeout, backoff, due, limit)
  local key = job_key(id)
  local state = call('HGET', key, 'state')
  if state == 'wait' or state == 'active' or state == 'delayed' then return false end
  if state then forget(id, state) end
  local delayed = int(due, 0) > now
  call('HSET', key, 'id', id, 'payload', payload, 'state', delayed and 'delayed' or 'wait',
    'attempt', '0', 'max_attempts', max_attempts, 'timeout_ms', timeout, 'backoff_ms', backoff,
    'created_ms', now, 'updated_ms', now)
  stamp(key, 'queued_ms', now, 'first_started_ms', '', 'last_started_ms', '', 'completed_ms', '',
    'failed_ms', '')
  if gid ~= '' then
    call('HSET', key, 'gid', gid)
    set_limit(gid, limit)
  end
  if delayed then
    call('HSET', key, 'due_ms', due)
    call('ZADD', DELAYED, due, id)
    entered('delayed', id, now)
    tally('delayed', 1)
  else
    push('RPUSH', id, gid, now)
  end
  return true
end

local answer = {0}
for at = 2, #ARGV, 8 do
  if not enqueue(unpack(ARGV, at, at + 7)) then
    answer[1] = answer[1] + 1
    answer[#answer + 1] = (at - 2) / 8
  end
end
noted(now, 'last_enqueue_ms')
return answer

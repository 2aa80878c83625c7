-- settle: the ends a lease can have. Answers OK, FAILED, RETRY or a code; and a due time or 0.

local KEPT = 100

-- The token of the lease that is ending stays on the job, so that who told an end twice, because no
-- answer came, can see that the first telling counted.
local function ended_by(id, token) call('HSET', job_key(id), 'x_ended', token) end

-- The three checks, in the order the wire promises; the lease is open for nobody else after them.
local function close_lease(id, token)
  if token == '' then return nil, 'TOKEN_REQUIRED' end
  local job = call('HMGET', job_key(id), 'lease_token', 'gid', 'attempt', 'max_attempts', 'backoff_ms',
    'x_checkpoint', 'x_returned')
  if job[1] ~= token then return nil, 'TOKEN_MISMATCH' end
  if call('ZREM', ACTIVE, id) == 0 then return nil, 'NOT_ACTIVE' end
  ended_by(id, token)
  return {
    gid = job[2] or '', attempt = int(job[3], 0), max_attempts = positive(job[4], 1),
    backoff = int(job[5], 0), checkpoint = job[6], returned = int(job[7], 0),
  }
end

-- Keep the newest hundred. An id is used again sometimes: only a hash that is still completed goes.
local function trim_completed(length)
  local lane = base .. ':completed'
  while length > KEPT do
    local id = call('RPOP', lane)
    length = length - 1
    if id and call('HGET', job_key(id), 'state') == 'completed' then
      call('DEL', job_key(id))
      left('completed', id)
    end
  end
  kept(length)
end

local function succeed(id, job, now, result, ttl)
  local key = job_key(id)
  call('HSET', key, 'state', 'completed', 'lease_token', '', 'lock_until_ms', '', 'updated_ms', now)
  if job.checkpoint then call('HDEL', key, 'x_checkpoint') end
  if ttl > 0 then call('SET', base .. ':x:result:' .. id, result, 'PX', ttl) end
  leave_active(id, job.gid, now)
  entered('completed', id, now)
  stamp(key, 'completed_ms', now)
  trim_completed(call('LPUSH', base .. ':completed', id))
  return 'OK', 0
end

local function fail(id, job, now, due, text)
  if text ~= '' then
    call('HSET', job_key(id), 'last_error', text, 'last_error_ms', now)
  end
  leave_active(id, job.gid, now)
  if retry_or_bury(id, job.attempt, job.max_attempts, due, now) then return 'RETRY', due end
  return 'FAILED', 0
end

local function give_back_attempt(id, job)
  call('HSET', job_key(id), 'attempt', math.max(job.attempt - 1, 0), 'x_returned', job.returned + 1)
end

local function wait_again(side, id, job, now)
  call('HSET', job_key(id), 'state', 'wait', 'lease_token', '', 'lock_until_ms', '',
    'updated_ms', now)
  push(side, id, job.gid, now)
  leave_active(id, job.gid, now)
end

local function snooze(id, job, now, delay, checkpoint)
  give_back_attempt(id, job)
  if checkpoint ~= '' then call('HSET', job_key(id), 'x_checkpoint', checkpoint) end
  if delay <= 0 then
    wait_again('RPUSH', id, job, now)
    return 'OK', now
  end
  leave_active(id, job.gid, now)
  park(id, now + delay, now)
  return 'OK', now + delay
end

-- verb, id, token, delay (ms), text, ttl (ms)
local function settle(verb, id, token, delay, text, ttl, now)
  local job, code = close_lease(id, token)
  if not job then return code, 0 end
  if verb == 'succeed' then return succeed(id, job, now, text, int(ttl, 0)) end
  if verb == 'fail' then return fail(id, job, now, now + job.backoff, text) end
  if verb == 'retry' then return fail(id, job, now, now + int(delay, 0), text) end
  if verb == 'snooze' then return snooze(id, job, now, int(delay, 0), text) end
  if verb == 'reject' then
    job.max_attempts = 0
    return fail(id, job, now, now, text)
  end
  give_back_attempt(id, job)
  wait_again('LPUSH', id, job, now)
  return 'OK', 0
end

-- ARGV from `first` on, six fields each, as a flat list of status and due time.
local function settle_all(first, count, now)
  local answers = {}
  for n = 0, count - 1 do
    local at = first + n * 6
    local status, due = settle(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4],
      ARGV[at + 5], now)
    answers[#answers + 1] = status
    answers[#answers + 1] = due
  end
  if count > 0 then noted(now, 'last_finish_ms') end
  return answers
end

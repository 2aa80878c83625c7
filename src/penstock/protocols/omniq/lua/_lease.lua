-- lease: grouped and ungrouped lanes by turns, one lease per job.

local GHOSTS = 100
local skipped = 0

-- What is told of a lease: ten fields.
local function tell(out, id, token, lock_until, job)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, job.payload, lock_until, job.attempt
  out[n + 5], out[n + 6], out[n + 7] = job.gid, token, positive(job.max_attempts, 1)
  out[n + 8], out[n + 9], out[n + 10] = job.timeout, job.checkpoint or '', int(job.returned, 0)
end

-- Append the lease of `id` to `out`. False for what is no waiting job: a hash that is gone, or an id
-- that another client queued twice.
local function lease(id, gid, now, out)
  local key = job_key(id)
  local job = call('HMGET', key, 'state', 'payload', 'gid', 'attempt', 'max_attempts', 'timeout_ms',
    'x_checkpoint', 'x_returned')
  tally_waiting(gid, -1)
  if job[1] ~= 'wait' or not job[2] then
    skipped = skipped + 1
    if not job[1] then left('wait', id) end
    return false
  end
  -- The lane decides: a gid that survived from an earlier job of this id would release a slot
  -- that was never taken.
  if gid ~= (job[3] or '') then
    if gid == '' then call('HDEL', key, 'gid') else call('HSET', key, 'gid', gid) end
  end
  local attempt = int(job[4], 0) + 1
  local timeout = positive(job[6], 60000)
  local lock_until = now + timeout
  local seq = call('INCR', base .. ':lease:seq')
  local token = redis.sha1hex(id .. ':' .. now .. ':' .. seq)
  call('HSET', key, 'state', 'active', 'attempt', attempt, 'lock_until_ms', lock_until,
    'lease_token', token, 'updated_ms', now)
  call('ZADD', ACTIVE, lock_until, id)
  left('wait', id)
  entered('active', id, now)
  tally('active', 1)
  started(key, now)
  tell(out, id, token, lock_until,
    {payload = job[2], attempt = attempt, gid = gid, max_attempts = job[5], timeout = timeout,
      checkpoint = job[7], returned = job[8]})
  return true
end

local function take_ungrouped(now, out)
  while skipped < GHOSTS do
    local id = call('LPOP', base .. ':wait')
    if not id then return false end
    if lease(id, '', now, out) then return true end
  end
  return false
end

local function take_from(gid, now, out)
  local list = group_key(gid, 'wait')
  while true do
    local id = call('LPOP', list)
    if not id then return false end
    if lease(id, gid, now, out) then
      call('INCR', group_key(gid, 'inflight'))
      call('HSET', LEASED, id, gid)
      ready_if_possible(gid, now)
      return true
    end
    if skipped >= GHOSTS then
      ready_if_possible(gid, now)
      return false
    end
  end
end

local function take_grouped(now, out)
  for _ = 1, 10 do
    local gid = call('ZPOPMIN', READY)[1]
    if not gid then return false end
    tally('groups_ready', -1)
    if not has_room(gid) then
      mark_ready(gid, now + 1)
    elseif take_from(gid, now, out) then
      return true
    end
  end
  return false
end

-- Up to `count` leases, flat, ten fields each; nothing changes if there is none.
local function reserve(count, now)
  local out = {}
  local turn = base .. ':lane:rr'
  local grouped_first = call('GET', turn) ~= '1'
  local leased = 0
  while leased < count do
    local found
    if grouped_first then
      found = take_grouped(now, out) or take_ungrouped(now, out)
    else
      found = take_ungrouped(now, out) or take_grouped(now, out)
    end
    if not found then break end
    leased = leased + 1
    grouped_first = not grouped_first
  end
  if leased > 0 then
    call('SET', turn, grouped_first and '0' or '1')
    noted(now, 'last_reserve_ms')
  end
  return out
end

-- What reserve answers: PAUSED, or the leases.
local function serve(count, now)
  if call('EXISTS', base .. ':paused') == 1 then return 'PAUSED' end
  return reserve(count, now)
end

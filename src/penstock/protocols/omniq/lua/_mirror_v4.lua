-- mirror, on (compat v4): what SDK 4.0 monitors read, kept in step by every transition.

local STATS = base .. ':stats'

local function entered(state, id, now) call('ZADD', base .. ':idx:' .. state, now, id) end

local function left(state, id) call('ZREM', base .. ':idx:' .. state, id) end

-- Counters never go below zero, whatever another client did.
local function tally(field, by)
  if call('HINCRBY', STATS, field, by) < 0 then call('HSET', STATS, field, 0) end
end

local function tally_waiting(gid, by)
  if gid == '' then tally('waiting', by) else tally('group_waiting', by) end
  tally('waiting_total', by)
end

local function noted(now, field)
  if field then
    call('HSET', STATS, field, now, 'last_activity_ms', now)
  else
    call('HSET', STATS, 'last_activity_ms', now)
  end
end

local function stamp(key, ...) call('HSET', key, ...) end

local function started(key, now)
  local first = call('HGET', key, 'first_started_ms')
  if first and first ~= '' then stamp(key, 'last_started_ms', now)
  else stamp(key, 'first_started_ms', now, 'last_started_ms', now) end
end

local function kept(length) call('HSET', STATS, 'completed_kept', length) end

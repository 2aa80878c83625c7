-- needs: base mirror lanes leave promote reap
-- tend: one round of a consumer: promote and reap. ARGV: now, most of each.
-- Answers how many of each, and in how many ms the next one is due (or -1).

local now = clock(ARGV[1])

local function due_in(set)
  local first = call('ZRANGE', set, 0, 0, 'WITHSCORES')
  return first[2] and math.max(int(first[2], now) - now, 0)
end

local reaped = reap(now, int(ARGV[3], 1000))
local _, promoted = promote(now, int(ARGV[2], 1000))
local due, lapse = due_in(DELAYED), due_in(ACTIVE)
local soonest = due and lapse and math.min(due, lapse) or due or lapse or -1
return {promoted, reaped, soonest}

-- needs: base mirror lanes leave settle lease
-- turn: end some leases and take new ones, in one step. ARGV: now, count, consumer, wait_ms, then per
-- lease verb, id, token, delay_ms, text, ttl_ms. Answers the ends and what reserve answers.

local now = clock(ARGV[1])
local answers = settle_all(5, (#ARGV - 4) / 6, now)
local count = int(ARGV[2], 0)
local jobs = {}
if count > 0 then
  jobs = serve(count, ARGV[3], int(ARGV[4], 0), now)
end
-- What we released and did not take is news for others.
if jobs ~= 'PAUSED' and call('EXISTS', base .. ':wait', READY) > 0 then
  arrivals = math.max(arrivals, 1)
end
ring(now)
return {answers, jobs}

-- needs: base mirror lanes leave settle lease
-- turn: end some leases and take new ones, in one step. ARGV: now, count, then per lease verb, id,
-- token, delay_ms, text, ttl_ms. Answers the ends and what reserve answers.

local now = clock(ARGV[1])
local count = int(ARGV[2], 0)
local answers = settle_all(3, (#ARGV - 2) / 6, now)
return {answers, count > 0 and serve(count, now) or {}}

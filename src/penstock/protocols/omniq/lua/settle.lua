-- needs: base mirror lanes leave settle
-- settle: end leases. ARGV: now, then per lease verb, id, token, delay_ms, text, ttl_ms.

local now = clock(ARGV[1])
local answers = settle_all(2, (#ARGV - 1) / 6, now)
return answers

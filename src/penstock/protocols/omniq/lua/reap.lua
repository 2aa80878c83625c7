-- needs: base mirror lanes leave reap
-- reap: ARGV: now, most. Answers how many leases had lapsed.

local now = clock(ARGV[1])
local count = reap(now, int(ARGV[2], 1000))
return count

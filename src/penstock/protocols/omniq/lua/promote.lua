-- needs: base mirror lanes promote
-- promote: ARGV: now, most. Answers how many were taken from delayed, and how many of them wait now.

local now = clock(ARGV[1])
local taken, moved = promote(now, int(ARGV[2], 1000))
return {taken, moved}

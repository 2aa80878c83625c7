-- needs: base mirror lanes leave settle lease
-- turn: end some leases and take new ones, in one step. ARGV: now, count, holder, number, then per
-- lease verb, id, token, delay_ms, text, ttl_ms. Answers the ends and what reserve answers. A holder
-- that names itself finds its leases of that number again with `regain`, should the answer be lost.

local now = clock(ARGV[1])
local count, holder = int(ARGV[2], 0), ARGV[3]
local answers = settle_all(5, (#ARGV - 4) / 6, now)
local jobs = count > 0 and serve(count, now) or {}
if holder ~= '' and #jobs > 0 and jobs ~= 'PAUSED' then
  local taken = {ARGV[4]}
  for at = 1, #jobs, 10 do
    taken[#taken + 1], taken[#taken + 2] = jobs[at], jobs[at + 5]
  end
  call('SET', base .. ':x:turn:' .. holder, cmsgpack.pack(taken), 'PX', 120000)
end
return {answers, jobs}

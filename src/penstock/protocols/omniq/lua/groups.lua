-- needs: base
-- groups: who is ready, or how single groups stand.
-- ARGV: ready, offset, limit: gid and score, flat. ARGV: status, gids: inflight, limit, ready, waiting each.

if ARGV[1] == 'ready' then
  local first = int(ARGV[2], 0)
  return call('ZRANGE', READY, first, first + int(ARGV[3], 200) - 1, 'WITHSCORES')
end
local out = {}
for at = 2, #ARGV do
  local gid = ARGV[at]
  local values = call('MGET', group_key(gid, 'inflight'), group_key(gid, 'limit'))
  local n = #out
  out[n + 1], out[n + 2] = int(values[1], 0), positive(values[2], 1)
  out[n + 3] = call('ZSCORE', READY, gid) and 1 or 0
  out[n + 4] = call('LLEN', group_key(gid, 'wait'))
end
return out

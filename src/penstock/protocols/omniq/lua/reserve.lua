-- needs: base mirror lanes lease
-- reserve: lease up to `count` jobs. ARGV: now, count.

return serve(int(ARGV[2], 1), clock(ARGV[1]))

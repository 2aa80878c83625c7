-- needs: base mirror lanes lease
-- reserve: lease up to `count` jobs. ARGV: now, count, consumer, wait_ms.
-- A consumer that names itself and got nothing is among the waiters for wait_ms.

return serve(int(ARGV[2], 1), ARGV[3], int(ARGV[4], 0), clock(ARGV[1]))

-- needs: base
-- result: what a job left with its success, while it is kept. ARGV: id.

return call('GET', base .. ':x:result:' .. ARGV[1])

"""PyPI omniq 1.7.0 and 4.0.0 beside our clients: the 33 scenarios, in both directions.

`peer_env` makes an environment for each version, `peer_main` is what runs in it, `sides` gives
ours and theirs one surface, `consumers` runs the consumers of both as programs. The package is
GPL: it runs in processes of its own and its source is no business of ours.

=========  ====================  ================================================================
scenario   file                  what is proved
=========  ====================  ================================================================
1 to 6     test_a_basics         payloads letter for letter, order, leases, tokens, due times
7 to 11    test_b_retry_and_reap backoff, reaping, error texts, retention, ids used again
12 to 14   test_c_groups         the worked example, limits across both, strict turns
15         test_c_stress         20 groups, 4 + 4 consumers, failures, a death on each side
16, 17     test_c_groups         readiness, and that a ready group keeps its place
18         test_d_pause          a pause by one holds for the other and stops nothing else
19 to 23   test_e_consumers      all handled, beats, deaths, lost leases, the matrix of ends
24, 25     test_e_interruptions  scripts forgotten, Redis restarted, our clock 10 minutes off
26         test_f_cluster        20 queues on three nodes, fan-outs in slots of their own
27 to 29   test_f_mirrors        mirrors kept, neglected by 1.7.0 and rebuilt, switched off
30 to 32   test_g_admin          each other's failed and waiting jobs, batches, fan-outs
33         test_g_long_queue     retrying 99 failed jobs behind 200,000 waiting ones
=========  ====================  ================================================================

Tests carry the number of their scenario. Every day runs both versions where it is cheap; the
slow ones (`make chaos`) repeat with 4.0.0 what takes processes and time. Where theirs have a
fault that nobody else can cure (11: they trim a job that lives again) the test says so.
"""

"""Does a worker speak natq? A black-box suite that knows it only through NATS.

    python -m tests.conformance.natq --worker "<command>" [--strict|--compat] [--only NAME] [--list]

The command is started with ``NATS_URL`` in its environment and must serve the seven
``e2e-*`` tasks. Two scores come out of one run: ``compat`` is what the upstream SDKs do,
``strict`` adds what Penstock promises where they are silent or lose work.

Further tasks are optional; a check whose task is not announced is skipped and says so.

=========================== ===== ==========================================================
task                        type  behaviour (``data`` is the input without reserved members)
=========================== ===== ==========================================================
``conf-echo``               sync  200, ``data`` is the input as it came, of whatever JSON type;
                                  nothing if there was no input (``null``)
``conf-reply``              sync  answers with the members ``status``, ``data``, ``error`` of the
                                  input, exactly; ``data`` or ``error`` absent: none
``conf-raise-sync``         sync  raises an exception with the message ``boom``
``conf-none-sync``          sync  returns nothing at all
``conf-unserializable-sync`` sync 200 with data that JSON cannot say (a function, a set …)
``conf-sleep-sync``         sync  waits ``ms``, then 200 ``{"slept": ms}``
``conf-echo-async``         async 200, ``data`` as for ``conf-echo``
``conf-reply-async``        async ends with ``status``, ``data``, ``error`` of the input
``conf-raise``              async raises an exception with the message ``boom``, each time
``conf-none``               async returns nothing at all
``conf-unserializable``     async 200 with data that JSON cannot say
``conf-nan``                async 200 with ``{"x": NaN}``
``conf-big``                async 200 with a text of ``bytes`` characters
``conf-sleep``              async waits ``ms``, then 200 ``{"slept": ms, "worker": w}`` where
                                  ``w`` is any text that differs between processes
``conf-untouched``          async 200 ``{"ran": true}``; gets nothing but input to be refused
=========================== ===== ==========================================================
"""

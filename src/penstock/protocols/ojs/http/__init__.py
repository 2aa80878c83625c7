"""The HTTP face of the job server: paths, headers and bodies of the Open Job Spec's binding.

Nothing is decided here. A handler reads a request into the engine's types, asks the engine,
and writes its answer down; a refusal becomes the error body that every other one has.
"""

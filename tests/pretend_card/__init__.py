"""Graphics cards for a build of torch without CUDA, and the tests that run on them. See the README here."""

"""Parts for tests of whole nights: a scripted backend, a disk that fails."""

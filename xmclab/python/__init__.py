"""xmclab as a library: the functions of the package that read data, train, predict and compare."""

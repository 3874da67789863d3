// nn.cl: see nn.cpp.

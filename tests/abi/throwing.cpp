// throwing.cpp: an adapter in C++ that lets an exception out of uba_query.
#include <stdexcept>

#include "torchfl/uba.h"

extern "C" UBA_EXPORT const uba_adapter *uba_query(uint32_t, const uba_host *) { throw std::runtime_error("oops"); }

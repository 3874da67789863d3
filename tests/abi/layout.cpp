// layout.cpp: the layouts of layout.c as a C++ compiler sees them, and that C++ may treat the structs as plain data.
#include <type_traits>

#define layout_use_of_macros layout_use_of_macros_cpp  // layout.c is compiled into the same program as C
#include "layout.c"

template <typename Type>
constexpr bool plain = std::is_standard_layout<Type>::value && std::is_trivial<Type>::value;

static_assert(plain<uba_header> && plain<uba_tensor> && plain<uba_value> && plain<uba_call> && plain<uba_kernel>, "");
static_assert(plain<uba_properties> && plain<uba_telemetry> && plain<uba_device_api>, "");
#ifndef UBA_TEST_1_0
static_assert(plain<uba_step> && plain<uba_program> && plain<uba_run>, "");
#endif
static_assert(plain<uba_host> && plain<uba_adapter>, "");

# TORCH_DIR, TORCH_VERSION_FULL, TORCH_CXX11_ABI of the PyTorch that is installed. torch's own CMake files look for a CUDA
# toolkit and more; two paths and three libraries are all that is needed.
include_guard(DIRECTORY)
find_package(Python COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import torch, os; p = os.path.dirname(torch.__file__); print(p, torch.__version__, int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=';')"
  OUTPUT_VARIABLE TORCH_FACTS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET TORCH_FACTS 0 TORCH_DIR)
list(GET TORCH_FACTS 1 TORCH_VERSION_FULL)
list(GET TORCH_FACTS 2 TORCH_CXX11_ABI)

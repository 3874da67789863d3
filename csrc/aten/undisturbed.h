// undisturbed.h: keeps torch.compile away from the Python code that the engine itself runs.
//
// Contract: while an object lives, Dynamo compiles nothing that this thread runs. What an operator's decision needs
// (PyTorch's shape functions, the composer) is Python called from C++: to Dynamo it would look like a function of the
// user's that a graph break has left.
#pragma once

namespace torchfl {

class Undisturbed {  // graph_python.cpp
 public:
  Undisturbed();
  ~Undisturbed();
  Undisturbed(const Undisturbed&) = delete;

 private:
  void* before_ = nullptr;  // the callback that was set
};

}  // namespace torchfl

// error.h: how the core reports failure, and the texts that an adapter leaves behind.
//
// Contract: the core throws torchfl::Error and nothing else of its own. The PyTorch side turns `kind` into the
// exception type a user expects. Messages say what, where and what to do.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "torchfl/uba.h"

namespace torchfl {

enum class ErrorKind {
  load,           // the library or its handshake was refused
  out_of_memory,  // after cached blocks were freed and the allocation retried
  invalid_value,  // the SDK refused an argument
  failed,         // one operation failed, the device goes on
  device_lost,    // this device is poisoned
  internal        // a broken promise between layers
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind error_kind, std::string text, int64_t code = 0)
      : std::runtime_error(std::move(text)), kind(error_kind), sdk_code(code) {}
  ErrorKind kind;
  int64_t sdk_code;  // what the SDK said, 0 if it said nothing
};

// What the adapter said last on this thread through uba_host.set_error; reading clears it.
struct SdkMessage {
  int64_t code = 0;
  std::string text;
};
SdkMessage take_sdk_message();

// The host table handed to every adapter.
const uba_host* host_table();

// Receives lines that adapters log (level as in uba_host.log). Default: level >= 2 to stderr.
using LogSink = void (*)(int32_t level, const char* text);
void set_log_sink(LogSink sink);

const char* status_name(uba_status status);  // "UBA_FAILED"

}  // namespace torchfl

// attention.cpp: see attention.h.
#include "attention.h"

#include <algorithm>

namespace torchfl {
namespace {

bool has_unit(const Chip& chip) { return chip.attention.has_value() && chip.attention->enabled; }

}  // namespace

bool attention_is_firewalled(const Chip& chip) { return has_unit(chip) && chip.attention->beyond_is_error; }

int64_t attention_length_limit(const Chip& chip) {
  const int64_t unit = has_unit(chip) ? chip.attention->max_sequence_length : 0;
  if (unit <= 0 || chip.max_sequence <= 0) return std::max(unit, chip.max_sequence);
  return std::min(unit, chip.max_sequence);
}

std::string beyond_attention(const Chip& chip, const AttentionCall& call) {
  if (!has_unit(chip)) return "";
  auto sentence = [&](const std::string& value, const std::string& limit) {
    return call.what + " with " + value + " not supported on " + chip.name + " (" + limit + ")";
  };
  const std::vector<int64_t>& heads = chip.attention->supported_heads;
  if (call.heads > 0 && !heads.empty() && std::find(heads.begin(), heads.end(), call.heads) == heads.end()) {
    std::string supported;
    for (int64_t count : heads) supported += (supported.empty() ? "" : ", ") + std::to_string(count);
    return sentence("num_heads=" + std::to_string(call.heads), "supported: " + supported);
  }
  auto most = [&](const char* words, int64_t value, int64_t limit) {
    if (limit <= 0 || value <= limit) return std::string();
    return sentence(words + std::to_string(value), "at most " + std::to_string(limit));
  };
  std::string text = most("sequence length ", call.length, attention_length_limit(chip));
  if (text.empty()) text = most("batch size ", call.batch, chip.max_batch);
  if (text.empty()) text = most("tensors of rank ", call.rank, chip.max_rank);
  return text;
}

}  // namespace torchfl

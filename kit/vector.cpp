// vector.cpp: the code generator for elementwise work: calls of instructions and operators to the source of a kernel,
// and its launch. See segment.h.
#include <algorithm>
#include <cstring>
#include <deque>

#include "segment.h"

namespace kit {

extern const char vector_prelude[] =
#include "vector.inc"
    ;

bool is_float(int32_t dtype) { return dtype >= UBA_DTYPE_FLOAT16 && dtype <= UBA_DTYPE_FLOAT32; }

int64_t bits_of(const uba_value &v, int32_t dtype) {
  const double d = v.kind == UBA_INT ? double(v.v.i) : v.v.d;
  const float f = v.kind == UBA_INT ? float(v.v.i) : float(v.v.d);
  int64_t bits = 0;
  if (is_float(dtype))
    std::memcpy(&bits, &f, sizeof(f));
  else if (dtype == UBA_DTYPE_FLOAT64)
    std::memcpy(&bits, &d, sizeof(d));
  else if (dtype == UBA_DTYPE_BOOL)
    bits = d != 0;
  else
    bits = v.kind == UBA_INT ? v.v.i : d > -9.2e18 && d < 9.2e18 ? int64_t(d) : 0;
  return bits;
}

namespace {

enum { kCompare = 1, kScalar = 2, kWide = 4, kWord = 8, kCast = 16, kOrder = 32 };
// An operator or instruction in the kernel language. $0 to $3 are the operands, $T the type of the operation, $U the
// unsigned one for integers (which wrap there), $S its element. `whole` is for integers, where that differs. kCompare:
// the result is bool. kScalar: one element at a time. kWide: in double where there is one. kWord: with the argument
// "tanh" the next form is meant. kCast: each operand has its own dtype. kOrder: masks of bool would be in the wrong
// order.
struct Form {
  const char *name, *real;
  int flags = 0;
  const char *whole = nullptr;
};
#define WRAP(op) "($T)(($U)$0 " op " ($U)$1)"
constexpr char kMax[] = "SEL($T, ($0 > $1) | ($0 != $0), $0, $1)", kMin[] = "SEL($T, ($0 < $1) | ($0 != $0), $0, $1)";
constexpr char kMaxInt[] = "max($0, $1)", kMinInt[] = "min($0, $1)";
// clang-format off: a table
const Form forms[] = {
    {"vcast", "$0", kCast}, {"copy_nd", "$0", kCast}, {"vfill", "$0"},
    {"vneg", "-$0", 0, "($T)(0 - ($U)$0)"}, {"vabs", "fabs($0)", 0, "($0 < 0 ? ($T)(0 - ($U)$0) : $0)"},
    {"vnot", "$0 == 0", 0, "($T)~$0"}, {"vfloor", "floor($0)"}, {"vceil", "ceil($0)"}, {"vtrunc", "trunc($0)"},
    {"vround", "rint($0)"}, {"vsqrt", "sqrt($0)"}, {"vrsqrt", "rsqrt($0)"}, {"vexp", "exp($0)"}, {"vexp2", "exp2($0)"},
    {"vexpm1", "expm1($0)"}, {"vlog", "log($0)"}, {"vlog2", "log2($0)"}, {"vlog10", "log10($0)"},
    {"vlog1p", "log1p($0)"}, {"vsin", "sin($0)"}, {"vcos", "cos($0)"}, {"vtan", "tan($0)", kWide},
    {"vasin", "asin($0)"}, {"vacos", "acos($0)"}, {"vatan", "atan($0)"}, {"vsinh", "sinh($0)"},
    {"vcosh", "cosh($0)"}, {"vtanh", "tanh($0)"}, {"vasinh", "asinh($0)"}, {"vacosh", "acosh($0)"},
    {"vatanh", "atanh($0)"}, {"verf", "erf($0)"}, {"verfc", "erfc($0)"},
    {"verfinv", "($T)erf_inverse($0)", kScalar}, {"vlgamma", "($T)log_gamma($0)", kScalar},
    {"vdigamma", "($T)digamma($0)", kScalar}, {"vadd", "$0 + $1", 0, WRAP("+")}, {"vsub", "$0 - $1", 0, WRAP("-")},
    {"vmul", "$0 * $1", 0, WRAP("*")}, {"vdiv", "$0 / $1"}, {"vidiv", "", kScalar, "IDIV($T, $U, $0, $1)"},
    {"vmax", kMax, 0, kMaxInt}, {"vmin", kMin, 0, kMinInt}, {"vpow", "pow($0, $1)", 0, "($T)whole_power($0, $1)"},
    {"vfmod", "fmod($0, $1)", 0, "IMOD($T, $0, $1)"}, {"vremainder", "REM($T, $0, $1, fmod($0, $1))", 0,
     "REM($T, $0, $1, IMOD($T, $0, $1))"}, {"vatan2", "atan2($0, $1)"}, {"vcopysign", "copysign($0, $1)"},
    {"vnextafter", "nextafter($0, $1)"}, {"vand", "$0 & $1"}, {"vor", "$0 | $1"}, {"vxor", "$0 ^ $1"},
    {"vshl", "", 0, "SHL($T, $U, $0, $1)"}, {"vshr", "", 0, "SHR($T, $0, $1)"}, {"vgcd", "", 0, "($T)gcd($0, $1)"},
    {"vigamma", "($T)gamma_ratio($0, $1, 0)", kScalar}, {"vigammac", "($T)gamma_ratio($0, $1, 1)", kScalar},
    {"vzeta", "($T)hurwitz_zeta($0, $1)", kScalar}, {"veq", "$0 == $1", kCompare}, {"vne", "$0 != $1", kCompare},
    {"vlt", "$0 < $1", kCompare | kOrder}, {"vle", "$0 <= $1", kCompare | kOrder},
    {"vgt", "$0 > $1", kCompare | kOrder},
    {"vge", "$0 >= $1", kCompare | kOrder}, {"vselect", "SEL($T, $0, $1, $2)"},
    // ---- operators, where more than an instruction
    {"add", "$0 + $2 * $1", 0, "($T)(($U)$0 + ($U)$2 * ($U)$1)"}, {"sub", "$0 - $2 * $1", 0,
     "($T)(($U)$0 - ($U)$2 * ($U)$1)"}, {"rsub", "$1 - $2 * $0", 0, "($T)(($U)$1 - ($U)$2 * ($U)$0)"},
    {"addcmul", "$0 + $3 * $1 * $2", 0, "($T)(($U)$0 + ($U)$3 * ($U)$1 * ($U)$2)"}, {"addcdiv", "$0 + $3 * ($1 / $2)"},
    {"lerp", "SEL($T, fabs($2) < ($S)0.5, $0 + $2 * ($1 - $0), $1 - ($1 - $0) * (1 - $2))"},
    {"masked_fill", "SEL($T, $1, $2, $0)"}, {"reciprocal", "1 / $0"}, {"relu", "SEL($T, $0 <= 0, 0, $0)"},
    {"threshold_backward", "SEL($T, $1 <= $2, 0, $0)"}, {"sigmoid", "1 / (1 + exp(-$0))"},
    {"sigmoid_backward", "$0 * ((1 - $1) * $1)"}, {"tanh_backward", "$0 * (1 - $1 * $1)"},
    {"silu", "$0 / (1 + exp(-$0))"},
    {"gelu", "($S)0.5 * $0 * (1 + erf($0 * ($S)0.7071067811865476))", kWord},
    {"gelu_tanh", "($S)0.5 * $0 * (1 + tanh(GELU_INNER($S, $0)))"},
    {"gelu_backward", "GELU_GRAD($S, $0, $1)", kWord}, {"gelu_backward_tanh", "GELU_TANH_GRAD($S, $0, $1)"},
    {"logical_not", "$0 == 0", kCompare}, {"isnan", "$0 != $0", kCompare},
    {"logical_and", "($0 != 0) & ($1 != 0)", kCompare}, {"logical_or", "($0 != 0) | ($1 != 0)", kCompare},
    {"logical_xor", "($0 != 0) ^ ($1 != 0)", kCompare}};
// clang-format on
constexpr int kForms = int(sizeof(forms) / sizeof(forms[0]));

int arity(const Form &form, bool whole) {
  int n = 0;
  for (const char *c = whole && form.whole ? form.whole : form.real; *c; c++)
    if (*c == '$' && c[1] >= '0' && c[1] <= '3') n = std::max(n, c[1] - '0' + 1);
  return n;
}

// ------------------------------------------------------------------------------------------------ segments

}  // namespace

Leaf leaf_of(const Segment &s, const uba_tensor &t, bool written) {
  Leaf leaf{t.data, t.byte_offset, {}, t.dtype, written};
  if (t.rank > s.rank) refuse("an operand has more dimensions than the result");
  for (int d = 0; d < t.rank; d++) {
    const int at = s.rank - t.rank + d;
    leaf.strides[at] = t.sizes[d] == s.sizes[at] ? t.strides[d] : 0;
    if (t.sizes[d] != s.sizes[at] && t.sizes[d] != 1) refuse("an operand does not broadcast to the result");
  }
  for (int d = 0; d < s.rank; d++)
    if (s.sizes[d] == 1) leaf.strides[d] = 0;
  return leaf;
}
bool same_place(const Leaf &a, const Leaf &b) {
  return a.data == b.data && a.offset == b.offset && a.dtype == b.dtype &&
         !std::memcmp(a.strides, b.strides, sizeof(a.strides));
}
void start(Segment &s, const uba_tensor &like) {
  if (like.rank > kRank) refuse("more than 8 dimensions");
  s.leaves.clear(), s.nodes.clear(), s.numbers.clear(), s.number_dtypes.clear();
  s.rank = like.rank;
  std::copy(like.sizes, like.sizes + like.rank, s.sizes);
}

int node_of(const Segment &s, const Leaf &leaf) {
  for (size_t n = s.nodes.size(); n-- > 0;)
    if (same_place(s.leaves[size_t(s.nodes[n].store)], leaf)) return int(n);
  return -1;
}

namespace {
int form_of(const uba_call &call, int64_t tag) {
  int form = int(tag);
  if (forms[form].flags & kWord)
    for (int i = 0; i < call.arg_count; i++)
      if (call.args[i].kind == UBA_STRING && !std::strcmp(call.args[i].v.str, "tanh")) form++;
  return form;
}
}  // namespace
void add_node(Segment &s, const uba_call &call, int64_t tag, bool in_program) {
  const int index = form_of(call, tag);
  const Form &form = forms[index];
  const uba_tensor &out = call.outputs[0];
  const int fills = index == kFill;  // (sizes, value, dtype)
  Node node{uint8_t(index),
            uint8_t(out.dtype),
            uint8_t(out.dtype),
            uint8_t(form.name[0] == 'v' || (form.flags & kCompare)),
            {},
            -1};
  if (form.flags & kCompare)
    for (int i = call.arg_count; i-- > 0;)
      if (call.args[i].kind == UBA_TENSOR) node.dtype = uint8_t(call.args[i].v.tensor->dtype);
  const int n = arity(form, !is_float(node.dtype) && node.dtype != UBA_DTYPE_FLOAT64 && node.dtype != UBA_DTYPE_BOOL);
  for (int i = 0; i < n; i++) {
    const int at = i + fills;
    static const uba_value one = {UBA_INT, 1, {1}};  // alpha and the like, where a schema leaves them out
    const uba_value &v = at < call.arg_count && call.args[at].kind != UBA_NONE ? call.args[at] : one;
    if (v.kind == UBA_TENSOR) {
      const Leaf leaf = leaf_of(s, *v.v.tensor, false);
      const int known = in_program ? node_of(s, leaf) : -1;
      if (known >= 0) {
        node.in[i] = {'r', uint8_t(known)};
        continue;
      }
      auto same = std::find_if(s.leaves.begin(), s.leaves.end(),
                               [&](const Leaf &l) { return !l.written && same_place(l, leaf); });
      node.in[i] = {'l', uint8_t(same - s.leaves.begin())};
      if (same == s.leaves.end()) s.leaves.push_back(leaf);
    } else if (v.kind == UBA_INT || v.kind == UBA_DOUBLE || v.kind == UBA_NUMBER) {
      node.in[i] = {'n', uint8_t(s.numbers.size())};
      s.numbers.push_back(v), s.number_dtypes.push_back(node.dtype);
    } else {
      refuse("an argument is neither a tensor nor a number");
    }
  }
  node.store = int8_t(s.leaves.size());
  s.leaves.push_back(leaf_of(s, out, true));
  s.nodes.push_back(node);
}

namespace {

// ------------------------------------------------------------------------------------------------ kernels

const char *base_type(const Device &device, int32_t dtype) {
  return is_float(dtype) ? "float" : dtype == UBA_DTYPE_BOOL ? "int" : storage_type(device, dtype);
}
const char *suffix(int32_t dtype) {
  return dtype == UBA_DTYPE_FLOAT16    ? "f16"
         : dtype == UBA_DTYPE_BFLOAT16 ? "bf16"
         : dtype == UBA_DTYPE_BOOL     ? "bool"
                                       : "num";
}

// The source of a segment's kernel. `kinds`: for each leaf how the last dimension is walked through: 0 not, 1 by one, 2
// by strides.
std::string source_of(const Device &device, const Segment &s, int rank, int width, const uint8_t *kinds) {
  const std::string v = width > 1 ? std::to_string(width) : "";
  auto type = [&](int32_t dtype) { return base_type(device, dtype) + v; };
  auto text = [](auto n) { return std::to_string(n); };
  const bool special =
      std::any_of(s.nodes.begin(), s.nodes.end(), [](const Node &node) { return forms[node.form].flags & kScalar; });
  std::string code =
      "#define V " + text(width) + (special ? "\n#define SPECIAL\n" : "\n") + vector_prelude + "struct P { long n[" +
      text(rank) + "], off[" + text(s.leaves.size()) + "], st[" + text(s.leaves.size() * size_t(rank)) + "]" +
      (s.numbers.empty() ? "" : ", num[" + text(s.numbers.size()) + "]") + "; };\nKERNEL void k(const struct P p";
  for (size_t i = 0; i < s.leaves.size(); i++)
    code += std::string(", GLOBAL ") + storage_type(device, s.leaves[i].dtype) + " *m" + text(i);
  code +=
      ") {\n  const long i = get_global_id(0) * V, left = p.n[" + text(rank - 1) + "] - i;\n  if (left <= 0) return;\n";
  if (rank > 1)
    code += "  const long c" + text(rank - 2) + " = get_global_id(1);\n  if (c" + text(rank - 2) + " >= p.n[" +
            text(rank - 2) + "]) return;\n";
  if (rank > 2) code += "  long rest = get_global_id(2);\n";
  for (int d = rank - 3; d >= 0; d--) {
    const std::string c = text(d), n = "p.n[" + c + "]";
    code += d ? "  const long c" + c + " = rest % " + n + ";\n  rest /= " + n + ";\n"
              : "  const long c0 = rest;\n  if (c0 >= p.n[0]) return;\n";
  }
  for (size_t i = 0; i < s.leaves.size(); i++) {
    code += "  const long a" + text(i) + " = p.off[" + text(i) + "]";
    for (int d = 0; d + 1 < rank; d++) code += " + c" + text(d) + " * p.st[" + text(int(i) * rank + d) + "]";
    if (kinds[i]) code += kinds[i] == 1 ? " + i" : " + i * p.st[" + text(int(i) * rank + rank - 1) + "]";
    code += ";\n";
  }
  uint32_t loaded = 0;
  for (size_t k = 0; k < s.nodes.size(); k++) {
    const Node &node = s.nodes[k];
    const Form &form = forms[node.form];
    const bool whole = !is_float(node.dtype) && node.dtype != UBA_DTYPE_FLOAT64 && node.dtype != UBA_DTYPE_BOOL;
    const bool wide = form.flags & kWide && device.fp64 && is_float(node.dtype);
    std::string in[4];
    for (int i = 0; i < 4 && node.in[i].kind; i++) {
      const int at = node.in[i].index;
      int32_t dtype = node.dtype;
      if (node.in[i].kind == 'l') {
        dtype = s.leaves[size_t(at)].dtype;
        in[i] = "x" + text(at);
        if (!(loaded >> at & 1)) {
          const std::string place = std::string(suffix(dtype)) + "(m" + text(at) + ", a" + text(at);
          std::string value = v.empty() || kinds[at] != 1 ? "LD_" + place + ")" : "LDV_" + place + ", left)";
          if (!v.empty() && kinds[at] != 1)
            value = dtype == UBA_DTYPE_BOOL ? "MASK(" + value + ")" : "(" + type(dtype) + ")(" + value + ")";
          code += "  const " + type(dtype) + " x" + text(at) + " = " + value + ";\n";
          loaded |= 1u << at;
        }
      } else if (node.in[i].kind == 'r') {
        dtype = s.nodes[size_t(at)].result;
        in[i] = "r" + text(at);
      } else {
        const std::string bits = "p.num[" + text(at) + "]";
        in[i] = is_float(dtype)              ? "as_float((int)" + bits + ")"
                : dtype == UBA_DTYPE_FLOAT64 ? "as_double(" + bits + ")"
                : dtype == UBA_DTYPE_BOOL    ? "MASK(" + bits + ")"
                                             : "(" + type(dtype) + ")" + bits;
        if (node.rounds && is_float(dtype) && dtype != UBA_DTYPE_FLOAT32)
          in[i] = std::string("AS_") + suffix(dtype) + "(" + in[i] + ")";
        if (!v.empty() && is_float(dtype)) in[i] = "(" + type(dtype) + ")(" + in[i] + ")";
      }
      if (form.flags & kCast) {  // from `dtype` to that of the node
        const bool to_float = is_float(node.dtype) || node.dtype == UBA_DTYPE_FLOAT64;
        if (node.dtype == UBA_DTYPE_BOOL)
          in[i] = dtype == UBA_DTYPE_BOOL ? in[i] : in[i] + " != 0";
        else if (!v.empty())
          in[i] = dtype == UBA_DTYPE_BOOL ? "FLOAT(" + in[i] + ")" : in[i];
        else if (!to_float && (is_float(dtype) || dtype == UBA_DTYPE_FLOAT64))
          in[i] = "(long)" + in[i];
        if (node.dtype != dtype && is_float(node.dtype) && node.dtype != UBA_DTYPE_FLOAT32)
          in[i] = std::string("AS_") + suffix(node.dtype) + (v.empty() ? "((float)" : "v(") + in[i] + ")";
      }
      if (wide) in[i] = "convert_double" + v + "(" + in[i] + ")";
    }
    const std::string compute = wide ? "double" + v : type(node.dtype);
    std::string value;
    for (const char *c = whole && form.whole ? form.whole : form.real; *c; c++) {
      if (*c != '$')
        value += *c;
      else if (*++c == 'T')
        value += compute;
      else if (*c == 'S')
        value += wide ? "double" : base_type(device, node.dtype);
      else if (*c == 'U')
        value += node.dtype == UBA_DTYPE_INT64 ? "ulong" : "uint";
      else
        value += "(" + in[*c - '0'] + ")";
    }
    if (wide)
      value = "convert_float" + v + "(" + value + ")";
    else if (v.empty())
      value = "(" + type(node.result) + ")(" + value + ")";
    code += "  const " + type(node.result) + " r" + text(k) + " = " + value + ";\n";
    if (node.store < 0) continue;
    const std::string st = text(int(node.store));
    code += std::string("  ST") + (v.empty() ? "_" : "V_") + suffix(node.result) + "(m" + st + ", a" + st + ", r" +
            text(k) + (v.empty() ? "" : ", left") + ");\n";
  }
  return code + "}\n";
}

// One element at a time, unless everything is float or bool, and walked through by one or not at all.
int width_of(const Device &device, const Segment &s, const uint8_t *kinds, int64_t inner) {
  const int width = int(std::min<int64_t>(device.lanes, 8));
  if (inner < width) return 1;
  for (size_t i = 0; i < s.leaves.size(); i++)
    if (kinds[i] == 2 || (kinds[i] == 0 && s.leaves[i].written) ||
        !(is_float(s.leaves[i].dtype) || s.leaves[i].dtype == UBA_DTYPE_BOOL))
      return 1;
  for (const Node &node : s.nodes) {
    if (!(is_float(node.dtype) || node.dtype == UBA_DTYPE_BOOL) || forms[node.form].flags & kScalar) return 1;
    if (node.dtype == UBA_DTYPE_BOOL && forms[node.form].flags & kOrder) return 1;
  }
  return width;
}

}  // namespace

void prepare(Device &device, const Segment &s, Prepared &out) {
  out.kernel = nullptr;
  if (s.count() == 0) return;
  // Join dimensions that all leaves walk through evenly, in the order of the first result's strides.
  int order[kRank], rank = 0;
  for (int d = 0; d < s.rank; d++)
    if (s.sizes[d] != 1) order[rank++] = d;
  const Leaf &lead = *std::find_if(s.leaves.begin(), s.leaves.end(), [](const Leaf &l) { return l.written; });
  std::stable_sort(order, order + rank, [&](int a, int b) { return lead.strides[a] > lead.strides[b]; });
  int64_t sizes[kRank] = {1};
  int last[kRank] = {0}, joined = 0;  // last: whose strides a joined dimension has
  for (int k = 0; k < rank; k++) {
    const int d = order[k];
    bool even = joined > 0;
    for (const Leaf &leaf : s.leaves) even = even && leaf.strides[last[joined - 1]] == leaf.strides[d] * s.sizes[d];
    if (even)
      sizes[joined - 1] *= s.sizes[d], last[joined - 1] = d;
    else
      sizes[joined] = s.sizes[d], last[joined++] = d;
  }
  // Small work shares one general kernel: to build another takes longer than it will ever save.
  const bool small = s.count() <= 1024;
  if (small && joined < 4) {
    std::copy_backward(sizes, sizes + joined, sizes + 4), std::copy_backward(last, last + joined, last + 4);
    std::fill(sizes, sizes + 4 - joined, 1), std::fill(last, last + 4 - joined, -1);
    joined = 4;
  }
  uint8_t kinds[kLeaves + 4];
  out.rank = joined, out.parameters.assign(sizes, sizes + joined);
  out.parameters.resize(size_t(joined) + s.leaves.size());
  for (size_t i = 0; i < s.leaves.size(); i++) {
    for (int d = 0; d < joined; d++) out.parameters.push_back(last[d] < 0 ? 0 : s.leaves[i].strides[last[d]]);
    const int64_t inner = out.parameters.back();
    kinds[i] = uint8_t(small || (inner != 0 && inner != 1) ? 2 : inner);
  }
  out.parameters.resize(out.parameters.size() + s.numbers.size());
  if (out.parameters.size() * 8 > device.parameter_bytes) refuse("more parameters than the device takes");
  const int64_t inner = sizes[joined - 1];
  const int width = width_of(device, s, kinds, inner);
  static thread_local std::string key;
  key.assign({'v', char(joined), char(width), char(s.leaves.size())});
  for (size_t i = 0; i < s.leaves.size(); i++) key += {char(s.leaves[i].dtype), char(kinds[i])};
  key.append(reinterpret_cast<const char *>(s.nodes.data()), s.nodes.size() * sizeof(Node));
  out.kernel = &kernel_for(device, key, [&] { return Recipe{source_of(device, s, joined, width, kinds), "k"}; });
  out.range.global[0] = size_t((inner + width - 1) / width);
  out.range.global[1] = joined > 1 ? size_t(sizes[joined - 2]) : 1;
  for (int d = 0; d + 2 < joined; d++) out.range.global[2] = (d ? out.range.global[2] : 1) * size_t(sizes[d]);
  if (joined < 3) out.range.global[2] = 1;
  const bool narrow = joined > 1 && out.range.global[0] < 32;
  out.range.local[0] = narrow ? 8 : 64, out.range.local[1] = narrow ? 8 : 1;
}

void run(Stream &stream, const Segment &s, const Prepared &p, const uba_value *numbers, void *const *blocks) {
  if (!p.kernel) return;
  static thread_local std::vector<int64_t> parameters;  // two threads may run one program
  parameters = p.parameters;
  Arguments set(stream.device);
  set.put(parameters.data(), parameters.size() * 8);
  for (size_t i = 0; i < s.leaves.size(); i++) {
    const Leaf &leaf = s.leaves[i];
    const void *data = blocks ? blocks[reinterpret_cast<uintptr_t>(leaf.data)] : leaf.data;
    const Buffer at = stream.device.at(static_cast<const char *>(data) + leaf.offset);
    parameters[size_t(p.rank) + i] = int64_t(at.offset) / item_size(leaf.dtype);
    const Memory memory{at.memory};
    set.add(memory);
  }
  for (size_t i = 0; i < s.numbers.size(); i++)
    parameters[parameters.size() - s.numbers.size() + i] = bits_of(numbers[i], s.number_dtypes[i]);
  set.launch(stream, *p.kernel, p.range);
}

namespace {
struct Eager {
  Segment segment;
  Prepared prepared;
};
Eager &eager() {
  static thread_local Eager made;
  return made;
}
}  // namespace

uba_status elementwise(void *device, const uba_call *call, int64_t tag) {
  return guard([&] {
    Device &d = device_of(device);
    Eager &e = eager();
    start(e.segment, call->outputs[0]);
    add_node(e.segment, *call, tag, false);
    prepare(d, e.segment, e.prepared);
    const Turn turn(device, call->stream);
    run(turn.stream, e.segment, e.prepared, e.segment.numbers.data(), nullptr);
  });
}

std::string type_macros(const Device &device, const std::string &prefix, int32_t dtype) {
  const std::string name = "#define " + prefix, type = suffix(dtype);
  return name + "_T " + storage_type(device, dtype) + "\n" + name + "_R " + base_type(device, dtype) + "\n" + name +
         "_LD LD_" + type + "\n" + name + "_ST ST_" + type + "\n";
}

KernelTable vector_kernels() {
  static std::deque<std::string> names;
  static std::vector<uba_kernel> table = [] {
    std::vector<uba_kernel> made;
    for (int i = 0; i < kForms; i++) made.push_back({forms[i].name, elementwise, i});
    // Operators that are an instruction under another name: "operator instruction", or v and the operator's own.
    // clang-format off
    static const char *const also[] = {
        "neg", "abs", "floor", "ceil", "trunc", "round", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2",
        "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh",
        "atanh", "erf", "erfc", "mul", "div", "pow", "fmod", "remainder", "atan2", "eq", "ne", "lt", "le", "gt", "ge",
        "where vselect", "maximum vmax", "minimum vmin", "clamp_min vmax", "clamp_max vmin", "bitwise_not vnot",
        "bitwise_and vand", "bitwise_or vor", "bitwise_xor vxor"};
    // clang-format on
    for (const std::string one : also) {
      const size_t space = one.find(' ');
      names.push_back(one.substr(0, space));
      const std::string form = space < one.size() ? one.substr(space + 1) : 'v' + one;
      for (int i = 0; i < kForms; i++)
        if (form == forms[i].name) made.push_back({names.back().c_str(), elementwise, i});
    }
    return made;
  }();
  return {table.data(), int64_t(table.size())};
}

int32_t mover_dtype(int32_t dtype) {
  static const int32_t movers[] = {0, UBA_DTYPE_UINT8, UBA_DTYPE_INT16, 0, UBA_DTYPE_INT32, 0, 0, 0, UBA_DTYPE_INT64};
  const int64_t size = item_size(dtype);
  return size <= 8 ? movers[size] : dtype;
}
uba_status copy_nd(void *device, void *stream, const uba_tensor *dst, const uba_tensor *src) {
  uba_tensor to = *dst, from = *src;
  if (to.dtype == from.dtype) to.dtype = from.dtype = mover_dtype(to.dtype);
  uba_value arg{UBA_TENSOR, 1, {}};
  arg.v.tensor = &from;
  const uba_call call = {UBA_HEADER(uba_call), "copy_nd", &arg, &to, 1, 1, stream};
  return elementwise(device, &call, kCopy);
}
uba_status fill_nd(void *device, void *stream, const uba_tensor *dst, const uba_value *value) {
  const uba_value args[2] = {*value, *value};
  uba_tensor to = *dst;
  const uba_call call = {UBA_HEADER(uba_call), "fill_nd", args, &to, 2, 1, stream};
  return elementwise(device, &call, kFill);
}

}  // namespace kit

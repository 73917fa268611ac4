// What PyTorch's scaled_dot_product_attention computes by a formula of products on a CPU: all that its fused kernel
// does not take.
#include <cstring>

#include "python/core/aten.h"

namespace simdattn_python::aten {

using simdattn::DType;

// Whether PyTorch's fused kernel would have taken the call, so that somebody has chosen the formula by sdpa_kernel().
bool Call::is_the_kernels() const {
  if (q.rank != 4 || k.rank != 4 || v.rank != 4) return false;
  if (q.shape[3] != k.shape[3] || q.shape[3] != v.shape[3]) return false;
  if (has_mask && mask.rank != 2 && mask.rank != 4) return false;
  for (int i = 0; i < 2; ++i)
    if (!(i == 1 && grouped) && (q.shape[i] != k.shape[i] || q.shape[i] != v.shape[i])) return false;
  return q.rows_are_contiguous() && k.rows_are_contiguous() && v.rows_are_contiguous();
}

const char* Call::refusal_of_formula() const {
  if (torch.any_modes(false)) return "torch.compile, or another mode of PyTorch's dispatcher";  // it sees the products
  if (const char* reason = unknown()) return reason;
  for (const Tensor* x : {&q, &k, &v, has_mask ? &mask : &q}) {
    if (x->data == nullptr) return "tensors without memory";
    if (x->rank > kMostRank || (x->rank < 2 && x != &mask)) return "more than 8 dimensions, or less than 2";
    if (torch.grad_mode_is_enabled() && torch.requires_grad(held(x->handle).tensor))
      return "a gradient, and another form than PyTorch's kernel takes";
  }
  if (torch.any_tangents()) return "tangents";
  return is_the_kernels() ? "PyTorch's formula is asked for, by sdpa_kernel()" : nullptr;
}

namespace {

// Null: there is none.
void* memory_of(Handle x) {
  void* data = nullptr;
  return x == nullptr || torch.get_data_ptr(x, &data) != 0 ? nullptr : data;
}

int64_t bytes_of(DType element) { return element == DType::kF32 ? 4 : element == DType::kU8 ? 1 : 2; }

// A tensor as one of `rank` dimensions: sizes of 1 before those that there are, and steps of 0 where a size is 1.
struct Wide {
  char* data = nullptr;
  DType type = DType::kF32;
  int64_t shape[kMostRank], stride[kMostRank];

  void set(const Tensor& x, int64_t rank) {
    data = static_cast<char*>(x.data);
    element_of(x.type, &type);
    for (int64_t i = 0; i < rank; ++i) {
      const int64_t at = i + x.rank - rank;
      shape[i] = at < 0 ? 1 : x.shape[at];
      stride[i] = shape[i] == 1 ? 0 : x.stride[at];
    }
  }
  // The last four dimensions, with these sizes before the last two, at a place in those before.
  simdattn::ConstView<4> last_four(int64_t rank, int64_t batch, int64_t heads, const int64_t* place) const {
    const int64_t *n = shape + rank - 4, *step = stride + rank - 4, bytes = bytes_of(type);
    const char* first = data;
    for (int64_t i = 0; i < rank - 4; ++i) first += place[i] * stride[i] * bytes;
    return {first, type, {batch, heads, n[2], n[3]}, {step[0], step[1], step[2], 1}};
  }
};

// q, k, v and a mask as arrays of as many dimensions, at least four.
struct Form {
  int64_t rank = 4, full[kMostRank], kv_heads = 1;  // full: the shape of the result
  Wide q, k, v, mask;

  explicit Form(const Call& call) {
    for (const Tensor* x : {&call.q, &call.k, &call.v}) rank = x->rank > rank ? x->rank : rank;
    q.set(call.q, rank), k.set(call.k, rank), v.set(call.v, rank);
    if (call.has_mask && call.mask.rank <= rank) mask.set(call.mask, rank);
  }

  // Finds the other members. False: the shapes do not fit; PyTorch's formula says so.
  bool broadcast(bool grouped) {
    const auto fits = [](int64_t n, int64_t wanted) { return n == 1 || n == wanted; };
    const int64_t heads = rank - 3, rows = rank - 2, last = rank - 1;
    for (int64_t i = 0; i < rows; ++i) {
      full[i] = q.shape[i];
      if (grouped && i == heads) continue;
      for (const Wide* x : {&k, &v}) full[i] = full[i] == 1 ? x->shape[i] : full[i];
      if (!fits(k.shape[i], full[i]) || !fits(v.shape[i], full[i])) return false;
    }
    full[rows] = q.shape[rows], full[last] = v.shape[last];
    const bool shared = grouped || (k.shape[heads] == 1 && v.shape[heads] == 1);
    kv_heads = shared ? k.shape[heads] : full[heads];
    if (shared && (v.shape[heads] != kv_heads || full[heads] % kv_heads != 0)) return false;
    for (int64_t i = 0; mask.data != nullptr && i < rank; ++i)
      if (!fits(mask.shape[i], i == last ? k.shape[rows] : full[i])) return false;
    return q.shape[last] == k.shape[last] && k.shape[rows] == v.shape[rows];
  }
};

}  // namespace

// Makes `out` of a call of any form.
const char* Call::attend_all() {
  if (!pack_all()) return kNoMemory;
  Form form(*this);
  if ((has_mask && (causal || mask.rank > form.rank)) || !form.broadcast(grouped)) return "shapes that do not fit";
  const int64_t rank = form.rank, *full = form.full, *size = full + rank - 4;
  int64_t own = 2, steps[kMostRank], place[kMostRank] = {};  // own: dimensions of the result
  for (const Tensor* x : {&q, &k, &v}) own = x->rank > own ? x->rank : own;
  int64_t step = 1;
  for (int64_t i = rank - 1; i >= 0; --i) steps[i] = step, step *= full[i];
  out = make(full + rank - own, steps + rank - own, q.type, own);
  if (memory_of(out) == nullptr) return kNoMemory;
  const DType types[3] = {form.q.type, form.k.type, form.v.type};
  const int64_t calls = step / (size[0] * steps[rank - 4]);
  for (int64_t n = 0; n < calls; ++n) {  // four dimensions are a call
    int64_t rest = n;
    for (int64_t i = rank - 5; i >= 0; --i) place[i] = rest % full[i], rest /= full[i];
    simdattn_attention_problem problem;
    problem.q = form.q.last_four(rank, size[0], size[1], place);
    problem.k = form.k.last_four(rank, size[0], form.kv_heads, place);
    problem.v = form.v.last_four(rank, size[0], form.kv_heads, place);
    char* const written = static_cast<char*>(memory_of(out)) + n * size[0] * steps[rank - 4] * bytes_of(types[0]);
    problem.out = simdattn::View<4>(written, types[0], {size[0], size[1], size[2], size[3]});
    const int64_t* seen = form.mask.shape + rank - 4;
    if (has_mask) {
      (form.mask.type == DType::kU8 ? problem.scoring.mask : problem.scoring.bias) =
          form.mask.last_four(rank, seen[0], seen[1], place);
    }
    if (const char* reason = run(&problem, types)) return reason;
  }
  // The weights, which PyTorch's function does not look at. Whoever calls the operator itself finds no tensor.
  return torch.new_uninitialized_tensor(&lse) == 0 ? nullptr : kNoMemory;
}

// Makes both results by PyTorch's formula, which may throw. given: q, k, v, the mask, and that of dropout.
void Call::by_formula(const Handle* given) {
  const auto optional = [](Handle x) { return x == nullptr ? std::nullopt : std::optional<Held>(held(x)); };
  const std::tuple<Held, Held> made =
      torch.formula(held(given[0]), held(given[1]), held(given[2]), optional(given[3]), dropout, causal,
                    optional(given[4]), has_scale ? std::optional<double>(scale) : std::nullopt, grouped);
  torch.new_uninitialized_tensor(&out), torch.new_uninitialized_tensor(&lse);
  static_cast<Held*>(out)->tensor = std::get<0>(made).tensor;
  static_cast<Held*>(lse)->tensor = std::get<1>(made).tensor;
}

namespace {

// Arguments of a call by the formula. That throws, and this text has no destructors which would free them: a later call
// of this thread does, if it finds them below its own frame on the stack. The formula may call this kernel again.
struct Given {
  Handle handles[5];  // q, k, v, the mask, and that of dropout
  const void* frame;
};
constexpr int kMostGiven = 4;
thread_local Given given[kMostGiven];  // the innermost last
thread_local int calls_given;

Handle handle_of(Value x) { return reinterpret_cast<Handle>(uintptr_t(x)); }

// An optional argument: null, or the address of a value that belongs to whom it is given to.
bool take(Value argument, Value* value) {
  auto* stored = reinterpret_cast<Value*>(uintptr_t(argument));
  if (stored == nullptr) return false;
  *value = *stored;
  torch.delete_value(stored);
  return true;
}

double double_of(Value x) {
  double number;
  std::memcpy(&number, &x, sizeof(number));
  return number;
}

}  // namespace

void formula_kernel(Value* stack, uint64_t, uint64_t) {
  Call call;
  while (calls_given > 0 && given[calls_given - 1].frame <= &call) free_handles(given[--calls_given].handles, 5);
  Value mask = 0, dropped = 0, scale = 0;
  take(stack[3], &mask);
  take(stack[6], &dropped);
  call.has_scale = take(stack[7], &scale);
  call.scale = double_of(scale), call.dropout = double_of(stack[4]);
  call.causal = (stack[5] & 0xFF) != 0, call.grouped = (stack[8] & 0xFF) != 0;
  Given mine = {{handle_of(stack[0]), handle_of(stack[1]), handle_of(stack[2]), handle_of(mask), handle_of(dropped)},
                &call};
  const bool read = call.read(mine.handles[0], mine.handles[1], mine.handles[2], mine.handles[3]);
  const char* reason = read ? call.refusal_of_formula() : "tensors without memory";
  if (reason == nullptr) reason = call.attend_all();
  call.end(reason);
  if (reason != nullptr) free_handles(&call.out, 1), free_handles(&call.lse, 1);
  const bool noted = calls_given < kMostGiven;
  if (noted) given[calls_given++] = mine;
  if (reason != nullptr) call.by_formula(mine.handles);
  if (noted) --calls_given;
  free_handles(mine.handles, 5);
  stack[0] = uintptr_t(call.out);
  stack[1] = uintptr_t(call.lse);
}

}  // namespace simdattn_python::aten

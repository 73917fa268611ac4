// Times prompts and tokens of a model in llama.cpp, at depths whose state is filled in rather than computed.
//
//   llama_tokens MODEL CACHE_TYPE THREADS LARGEST_DEPTH
//
// Reads lines: "DEPTH prompt N" decodes N tokens at once behind DEPTH others, "DEPTH tokens N" one after the other.
// Answers each with nanoseconds; "tokens" with those of each token. tools/llama-tokens runs it. Under qemu with
// count_instructions.c the plug-in prints the instructions of each.
#include <ggml-backend.h>
#include <llama.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kSeed = 64;  // tokens that are computed, of whose state others are copies
constexpr int kBatch = 512;
constexpr long kMarker = 0x7a11;  // of count_instructions.c

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "llama_tokens: %s\n", what);
  std::exit(1);
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void decode(llama_context* context, int count) {
  const int words = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  std::vector<llama_token> tokens(static_cast<size_t>(count));
  static uint32_t state = 1;
  for (llama_token& t : tokens) {
    state = state * 1664525u + 1013904223u;
    t = static_cast<llama_token>(state >> 8) % words;
  }
  if (llama_decode(context, llama_batch_get_one(tokens.data(), count)) != 0) fail("llama_decode");
  llama_synchronize(context);
}

/// The state of a sequence: how many streams and cells, something for each cell that begins with its position, then for
/// each layer and for keys and for values a type, the bytes of a row, and rows. This is no public format, so every
/// number that is known is compared.
class State {
 public:
  State(llama_context* context, ggml_type type) : type_(type), bytes_(llama_state_seq_get_size(context, 0)) {
    if (llama_state_seq_get_data(context, bytes_.data(), bytes_.size(), 0) != bytes_.size()) fail("no state");
    // Some releases begin with a mark and the number of the sequence.
    for (head_ = 0; read<uint32_t>(head_) != 1 || read<uint32_t>(head_ + 4) != kSeed; head_ += 4) {
      if (head_ > 16) fail("the state does not begin as expected");
    }
    head_ += 8;
    const auto layers = static_cast<uint32_t>(llama_model_n_layer(llama_get_model(context)));
    for (cell_ = 8; !is_cell(layers); cell_ += 4) {
      if (cell_ > 64) fail("the cells of the state are not as expected");
    }
  }

  /// That of `depth` tokens, which begin with those that were computed.
  std::vector<uint8_t> of(int depth) const {
    std::vector<uint8_t> out;
    append(&out, 0, head_ - 4);
    append_number(&out, static_cast<uint32_t>(depth));
    for (int i = 0; i < depth; ++i) {
      append_number(&out, i);
      append(&out, head_ + static_cast<size_t>(i % kSeed) * cell_ + 4, cell_ - 4);
    }
    size_t at = data();
    append(&out, at, 8);
    at += 8;
    while (at < bytes_.size()) {
      if (!are_rows(at)) {  // some releases have words in between
        append(&out, at, 4);
        at += 4;
        continue;
      }
      const auto row = static_cast<size_t>(read<uint64_t>(at + 4));
      append(&out, at, 12);
      at += 12;
      for (int i = 0; i < depth; ++i) append(&out, at + static_cast<size_t>(i % kSeed) * row, row);
      at += kSeed * row;
    }
    if (at != bytes_.size()) fail("the rows of the state are not as expected");
    return out;
  }

 private:
  template <class T>
  T read(size_t at) const {
    T x;
    if (at + sizeof x > bytes_.size()) fail("the state is too short");
    std::memcpy(&x, &bytes_[at], sizeof x);
    return x;
  }
  bool are_rows(size_t at) const {
    if (at + 12 > bytes_.size() || read<int32_t>(at) != type_) return false;
    const auto row = read<uint64_t>(at + 4);
    return row > 0 && row < (uint64_t{1} << 20) && at + 12 + kSeed * row <= bytes_.size();
  }
  size_t data() const { return head_ + kSeed * cell_; }
  bool is_cell(uint32_t layers) const {
    for (int i = 0; i < kSeed; ++i) {
      if (read<int32_t>(head_ + static_cast<size_t>(i) * cell_) != i) return false;
    }
    return read<uint32_t>(data()) == 0 && read<uint32_t>(data() + 4) == layers;  // values are not transposed
  }
  void append(std::vector<uint8_t>* out, size_t at, size_t count) const {
    if (at + count > bytes_.size()) fail("the state is too short");
    out->insert(out->end(), &bytes_[at], &bytes_[at] + count);
  }
  template <class T>
  static void append_number(std::vector<uint8_t>* out, T x) {
    const auto* p = reinterpret_cast<const uint8_t*>(&x);
    out->insert(out->end(), p, p + sizeof x);
  }

  int32_t type_;
  std::vector<uint8_t> bytes_;
  size_t head_ = 0, cell_ = 0;  // bytes
};

ggml_type type_of(const char* name) {
  for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
    const char* const other = ggml_type_name(static_cast<ggml_type>(type));
    if (other != nullptr && std::strcmp(name, other) == 0) return static_cast<ggml_type>(type);
  }
  fail("no such type of cache");
}

llama_context* make_context(const char* file, ggml_type cache, int threads, int depth) {
  ggml_backend_load_all();
  llama_model_params of_model = llama_model_default_params();
  of_model.n_gpu_layers = 0;
  llama_model* const model = llama_model_load_from_file(file, of_model);
  if (model == nullptr) fail("no model");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(depth + 2 * kBatch);
  params.n_batch = params.n_ubatch = kBatch;
  params.n_threads = params.n_threads_batch = threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
  params.type_k = params.type_v = cache;
  llama_context* const context = llama_init_from_model(model, params);
  if (context == nullptr) fail("no context");
  return context;
}

/// With the state restored if the depth is another one, and else cut.
void go_to(llama_context* context, const State& seed, int depth) {
  static int filled = -1;
  llama_memory_t memory = llama_get_memory(context);
  if (filled == depth) {
    llama_memory_seq_rm(memory, 0, depth, -1);
    return;
  }
  llama_memory_clear(memory, true);
  filled = depth;
  if (depth == 0) return;
  const std::vector<uint8_t> state = seed.of(depth);
  if (llama_state_seq_set_data(context, state.data(), state.size(), 0) == 0) fail("the state is not taken");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: llama_tokens MODEL CACHE_TYPE THREADS LARGEST_DEPTH");
  llama_context* const context = make_context(argv[1], type_of(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  decode(context, kSeed);
  const State seed(context, type_of(argv[2]));
  std::printf("ready\n");
  std::fflush(stdout);
  int depth = 0, count = 0;
  char what[16];
  while (std::scanf("%d %15s %d", &depth, what, &count) == 3) {
    const bool prompt = std::strcmp(what, "prompt") == 0;
    go_to(context, seed, depth);
    if (!prompt) decode(context, 1);  // the first one finds nothing in the caches of the CPU
    for (int i = 0; i < (prompt ? 1 : count); ++i) {
      syscall(kMarker);
      const int64_t start = now();
      decode(context, prompt ? count : 1);
      const int64_t end = now();
      syscall(kMarker);
      std::printf("%lld ", static_cast<long long>(end - start));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

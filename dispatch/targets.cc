// The list of targets, best first, and how one is chosen.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "dispatch/target.h"
#include "dispatch/tuning.h"

namespace simdattn {
namespace {

constexpr size_t kMaxText = 1024;

/// Everything that is known once and never changes afterwards.
struct Registry {
  Target storage[kMaxTargets];
  const Target* list[kMaxTargets];
  size_t size;
  struct Answers {
    const Target* chosen;    // the default; null: SIMDATTN_TARGET names none that can run
    char unknown[kMaxText];  // sentences with the list of good names
    char bad_environment[kMaxText];
  } answers[2];  // until permission comes; from then on
  char no_amx[kMaxText];

  void add(const KernelTable& t) {
    const char* missing = missing_feature(t.isa);
    storage[size++] = {.name = t.name,
                       .kernels = t.kernels,
                       .exact = t.fma,
                       .runnable = *missing == '\0',
                       .missing = missing,
                       .permission = t.isa == Isa::kAmx,
                       .fast_bf16 = has_fast_bf16(t.isa, tuning_of_cpu())};
  }

  static void append(char (&text)[kMaxText], const char* s) { std::strncat(text, s, kMaxText - 1 - std::strlen(text)); }
  void write_sentence(char (&text)[kMaxText], const char* start, bool permission) const {
    append(text, start);
    for (size_t i = 0; i < size; ++i) {
      if (!storage[i].runnable) continue;
      append(text, " ");
      append(text, storage[i].name);
      if (storage[i].permission && !permission) append(text, " (after request_amx())");
    }
  }

  /// The first target that can run, with or without those that take permission, and that has this name, if any.
  const Target* choose(const char* name, bool permission) const {
    for (size_t i = 0; i < size; ++i) {
      const Target& t = storage[i];
      const bool good = t.runnable && (permission || !t.permission);
      if (good && (name == nullptr || std::strcmp(t.name, name) == 0)) return list[i];
    }
    return nullptr;
  }

  /// `home` is where it will stay; pointers lead there.
  void build(const Registry* home) {
    for (auto place = static_cast<int>(Isa::kEnd); place-- > 0;) {
      for (const KernelTable& t : kVectorTables) {
        if (t.isa == isa_at(place, tuning_of_cpu())) add(t);
      }
    }
    const auto runs = [](const KernelTable& t) { return *missing_feature(t.isa) == '\0'; };
    add(*std::find_if(kScalarTables.begin(), kScalarTables.end(), runs));
    for (size_t i = 0; i < size; ++i) list[i] = &home->storage[i];

    append(no_amx, "request_amx: this CPU or operating system lacks ");
    append(no_amx, missing_feature(Isa::kAmx));
    const char* wanted = std::getenv("SIMDATTN_TARGET");
    if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
    for (const bool permission : {false, true}) {
      Answers& a = answers[permission];
      a.chosen = choose(wanted, permission);
      write_sentence(a.unknown, "name: no target of this name can run here; these can:", permission);
      write_sentence(a.bad_environment, "SIMDATTN_TARGET: no target of this name can run here; these can:", permission);
    }
  }
};

/// The list, built at the first use without a lock, because a call takes none (a lock of the C++ runtime in a static
/// variable is one, too). Every thread that comes before it is ready builds all of it on its stack, the same bytes as
/// the others, and sets those words of the common copy that are still zero. A word is written once, before anybody
/// reads it; a thread that is late only reads.
const Registry& registry() {
  using Word [[gnu::may_alias]] = uintptr_t;
  static_assert(sizeof(Registry) % sizeof(Word) == 0 && std::is_trivially_copyable_v<Registry>);
  static constinit Registry home = {};
  static bool ready;
  if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
    Registry mine;
    std::memset(static_cast<void*>(&mine), 0, sizeof(mine));
    mine.build(&home);
    const Word* const from = reinterpret_cast<const Word*>(&mine);
    Word* const to = reinterpret_cast<Word*>(&home);
    for (size_t i = 0; i < sizeof(Registry) / sizeof(Word); ++i) {
      Word expected = 0;
      if (from[i] != 0 && __atomic_load_n(&to[i], __ATOMIC_ACQUIRE) == 0) {
        __atomic_compare_exchange_n(&to[i], &expected, from[i], false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
      }
    }
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
  }
  return home;
}

}  // namespace

const char* missing_now(const Target& target) {
  if (*target.missing != '\0') return target.missing;
  return target.permission && !has_permission() ? "permission: call request_amx()" : "";
}

Status resolve(const Exec& exec, const Target** target) {
  const Target* t = exec.target;
  if (t == nullptr) return simdattn_default_target(target);
  if (!t->runnable) return {Code::kTarget, "exec.target: this CPU cannot run it"};
  if (t->permission && !has_permission()) {
    return {Code::kTarget, "exec.target: it needs permission: call request_amx()"};
  }
  *target = t;
  return {};
}

}  // namespace simdattn

using namespace simdattn;  // the C names beside it are the same types

extern "C" {

const Target* const* simdattn_targets(size_t* count) {
  if (count != nullptr) *count = registry().size;
  return registry().list;
}
const char* simdattn_target_name(const Target* target) { return target == nullptr ? "" : target->name; }
bool simdattn_target_runnable(const Target* target) { return target != nullptr && *missing_now(*target) == '\0'; }
const char* simdattn_target_missing(const Target* target) { return target == nullptr ? "" : missing_now(*target); }
Arithmetic simdattn_arithmetic_for(DType q, KvType k, KvType v, const Exec* exec) {
  const bool all_bf16 = q == DType::kBF16 && k == KvType::kBF16 && v == KvType::kBF16;
  const Target* target = nullptr;
  if (!all_bf16 || !resolve(exec == nullptr ? Exec() : *exec, &target).ok()) return Arithmetic::kF32;
  return target->fast_bf16 ? Arithmetic::kBF16 : Arithmetic::kF32;
}
bool simdattn_target_exact(const Target* target) { return target != nullptr && target->exact; }

Status simdattn_find_target(const char* wanted, const Target** target) {
  if (wanted == nullptr) return {Code::kNullPointer, "name: must not be null"};
  if (target == nullptr) return {Code::kNullPointer, "target: must not be null"};
  const Target* const t = registry().choose(wanted, true);
  if (t == nullptr) return {Code::kTarget, registry().answers[has_permission()].unknown};
  if (t->permission && !has_permission()) {
    return {Code::kTarget, "name: this target needs permission: call request_amx()"};
  }
  *target = t;
  return {};
}

Status simdattn_default_target(const Target** target) {
  if (target == nullptr) return {Code::kNullPointer, "target: must not be null"};
  const auto& r = registry();
  const Registry::Answers& now = r.answers[has_permission()];
  if (now.chosen == nullptr) {
    return {Code::kTarget, r.answers[true].chosen != nullptr
                               ? "SIMDATTN_TARGET: this target needs permission: call request_amx()"
                               : now.bad_environment};
  }
  *target = now.chosen;
  return {};
}

Status simdattn_request_amx(void) {
  if (*missing_feature(Isa::kAmx) != '\0') return {Code::kTarget, registry().no_amx};
  const int error = request_permission();
  return error == 0 ? Status{} : Status{Code::kTarget, refusal(error)};
}

#define SIMDATTN_TEXT_OF(x) #x
#define SIMDATTN_TEXT(x) SIMDATTN_TEXT_OF(x)
const char* simdattn_version(void) {
  return SIMDATTN_TEXT(SIMDATTN_VERSION_MAJOR) "." SIMDATTN_TEXT(SIMDATTN_VERSION_MINOR) "." SIMDATTN_TEXT(
      SIMDATTN_VERSION_PATCH);
}

}  // extern "C"

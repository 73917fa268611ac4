// Runs a call of the library with the GIL released: on this thread, or in pieces that a team shares and that a signal
// ends.
#include <atomic>
#include <cstdlib>
#include <ctime>

#include <pthread.h>

#include "python/core/core.h"

namespace simdattn_python {

Library library;
int threads_of_process = 1;
int64_t work_of_a_thread = 1 << 20;

namespace {

using simdattn::Code;
using Status = simdattn_status;

// ---- Working memory -------------------------------------------------------------------------------------------------

// That of a Python thread, kept for its next call. A running call holds the capsule: the thread may be a daemon whose
// state is cleared while it is in the call.
struct Scratch {
  char* memory;
  size_t bytes;
  bool busy;  // a call of this thread is not over
};

Scratch* scratch_of(PyObject* capsule) {
  return static_cast<Scratch*>(PyCapsule_GetPointer(capsule, "simdattn.scratch"));
}

void free_scratch(PyObject* capsule) {
  std::free(scratch_of(capsule)->memory);
  std::free(scratch_of(capsule));
}

PyObject* new_scratch() {
  auto* scratch = static_cast<Scratch*>(std::calloc(1, sizeof(Scratch)));
  if (scratch == nullptr) return PyErr_NoMemory();
  PyObject* capsule = PyCapsule_New(scratch, "simdattn.scratch", free_scratch);
  if (capsule == nullptr) std::free(scratch);
  return capsule;
}

// A new reference to the capsule of this thread; null: an exception. A handler of signals that makes a call while
// another one of its thread is not over gets memory of its own, for that call.
PyObject* hold_scratch() {
  static PyObject* const key = PyUnicode_InternFromString("simdattn.scratch");
  PyObject* state = PyThreadState_GetDict();
  if (state == nullptr) return PyErr_NoMemory();
  PyObject* kept = PyDict_GetItemWithError(state, key);
  if (kept != nullptr && !scratch_of(kept)->busy) return Py_INCREF(kept), kept;
  PyObject* capsule = new_scratch();
  if (kept == nullptr && capsule != nullptr && PyDict_SetItem(state, key, capsule) != 0)
    Py_DECREF(capsule), capsule = nullptr;
  return capsule;
}

bool grow(Scratch* scratch, size_t bytes) {
  if (bytes <= scratch->bytes) return true;
  std::free(scratch->memory);
  scratch->memory = static_cast<char*>(std::malloc(bytes));
  scratch->bytes = scratch->memory == nullptr ? 0 : bytes;
  return scratch->memory != nullptr;
}

simdattn_exec exec_of(const simdattn_target* target, char* memory, size_t bytes) {
  simdattn_exec exec;
  exec.target = target;
  exec.workspace = memory;
  exec.workspace_bytes = bytes;
  return exec;
}

// ---- A plan's tasks, shared -----------------------------------------------------------------------------------------

int64_t milliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct Job {
  const simdattn_plan* plan;
  const simdattn_target* target;
  char* partial;
  char* workspaces;  // workspace_bytes for each of the team
  size_t workspace_bytes;
  bool reduce;
  double multiply_adds;  // of all tasks
  int64_t tasks, piece;
  std::atomic<int64_t> next{0};
  std::atomic<int> members{0};
  std::atomic<bool> stopped{false};
  std::atomic<bool> failed{false};
  Status status{};                 // of the first that failed
  unsigned long caller = 0;        // the thread that began the job
  PyThreadState* state = nullptr;  // Python's of that thread; null: it called without Python
  bool raised = false;
};

// Lets Python's handlers of signals run: Ctrl-C ends the call.
void look_for_signals(Job* job) {
  PyEval_RestoreThread(job->state);
  if (PyErr_CheckSignals() != 0) job->raised = true, job->stopped = true;
  job->state = PyEval_SaveThread();
}

void work(void* argument) {
  auto* job = static_cast<Job*>(argument);
  const int member = job->members.fetch_add(1);
  const simdattn_exec exec =
      exec_of(job->target, job->workspaces + size_t(member) * job->workspace_bytes, job->workspace_bytes);
  const bool caller = job->state != nullptr && PyThread_get_thread_ident() == job->caller;
  int64_t looked = milliseconds();
  while (!job->stopped) {
    const int64_t first = job->next.fetch_add(job->piece);
    if (first >= job->tasks) return;
    const int64_t last = first + job->piece < job->tasks ? first + job->piece : job->tasks;
    const size_t bytes = job->plan->partial_bytes;
    const Status status = job->reduce ? library.attention_reduce(job->plan, first, last, job->partial, bytes, &exec)
                                      : library.attention_range(job->plan, first, last, job->partial, bytes, &exec);
    if (status.code != Code::kOk) {
      if (!job->failed.exchange(true)) job->status = status;
      job->stopped = true;
    }
    if (caller && milliseconds() - looked >= 50) {
      look_for_signals(job);
      looked = milliseconds();
    }
  }
}

// A piece is worth its call, and a signal does not wait long for its end, on slow targets too.
constexpr int64_t kWorkOfAPiece = int64_t(1) << 22;

void run_tasks(Job* job, bool reduce, int threads, bool openmp) {
  job->reduce = reduce;
  job->tasks = reduce ? job->plan->reduce_tasks : job->plan->tasks;
  if (job->stopped || job->tasks == 0) return;
  const int64_t shared = job->tasks / (16 * threads);
  const auto small = int64_t(double(kWorkOfAPiece) / job->multiply_adds * double(job->tasks));
  job->piece = shared < small ? shared : small;
  if (job->piece < 1) job->piece = 1;
  job->next = 0;
  job->members = 0;
  run_team(work, job, threads < job->tasks ? threads : int(job->tasks), openmp);
}

// ---- Attention ------------------------------------------------------------------------------------------------------

// Multiply-adds of a problem, at most: masks and windows may hide keys. In floating point, because no rule has looked
// at the sizes yet.
int64_t work_of(const simdattn_attention_problem& a) {
  double keys = double(a.k.capacity);
  if (a.scoring.kv_length != nullptr) {
    keys = 0;
    const int64_t sequences = a.cu_q == nullptr ? a.q.shape[0] : a.n_sequences;
    for (int64_t b = 0; b < sequences; ++b) keys = a.scoring.kv_length[b] > keys ? a.scoring.kv_length[b] : keys;
  }
  if (a.lists.data != nullptr) keys = double(a.lists.length) * double(a.lists.block_size);
  const double window = a.scoring.window_left < 0 ? keys : double(a.scoring.window_left) + double(a.q.shape[2]);
  const double work = double(a.q.shape[0]) * double(a.q.shape[1]) * double(a.q.shape[2]) *
                      (window < keys ? window : keys) * (double(a.k.dim) + double(a.v.dim));
  return work < 1e18 ? int64_t(work) : int64_t(1e18);
}

// How many threads may take part in a call that Python makes; -1: an exception.
int most_threads(const Running& what) {
  long most = threads_of_process;
  if (what.threads != Py_None) {
    most = PyLong_AsLong(what.threads);
  } else if (what.tensor && types.num_threads != nullptr) {
    PyObject* found = PyObject_CallObject(types.num_threads, nullptr);
    if (found == nullptr) return -1;
    most = PyLong_AsLong(found);
    Py_DECREF(found);
  }
  return most == -1 && PyErr_Occurred() != nullptr ? -1 : int(most < 1 ? 1 : most > 256 ? 256 : most);
}

bool is_worth_threads(int64_t multiply_adds) { return multiply_adds / 2 >= work_of_a_thread; }

// One attention and how it runs.
struct Attention {
  const simdattn_attention_problem* problem;
  const simdattn_target* target;
  int64_t multiply_adds;
  int threads;
  bool openmp;
  PyThreadState* state;  // as in Job
};
enum class Outcome { kDone, kNoMemory, kRaised };

Outcome run_planned(const Attention& a, Scratch* scratch, Status* status) {
  simdattn_plan plan;
  simdattn_exec exec = exec_of(a.target, nullptr, 0);
  exec.threads = a.threads;
  *status = library.attention_plan(a.problem, &plan, &exec);
  if (status->code != Code::kOk) return Outcome::kDone;
  const size_t partial = (plan.partial_bytes + 63) / 64 * 64, each = (plan.workspace_bytes + 63) / 64 * 64;
  if (!grow(scratch, partial + each * size_t(a.threads) + 64)) return Outcome::kNoMemory;
  char* memory = scratch->memory + (64 - reinterpret_cast<uintptr_t>(scratch->memory) % 64) % 64;
  Job job;
  job.plan = &plan;
  job.target = a.target;
  job.multiply_adds = double(a.multiply_adds);
  job.partial = memory;
  job.workspaces = memory + partial;
  job.workspace_bytes = each;
  job.caller = PyThread_get_thread_ident();
  job.state = a.state;
  run_tasks(&job, false, a.threads, a.openmp);
  run_tasks(&job, true, a.threads, a.openmp);
  if (job.failed) *status = job.status;
  return job.raised ? Outcome::kRaised : Outcome::kDone;
}

constexpr int64_t kWorthPieces = int64_t(1) << 28;  // tens of milliseconds: a signal does not wait for the whole

// Without the GIL.
Outcome run_attention(Attention a, Scratch* scratch, Status* status) {
  const int64_t worth = a.multiply_adds / work_of_a_thread;
  a.threads = int(!is_worth_threads(a.multiply_adds) ? 1 : worth < a.threads ? worth : a.threads);
  if (a.threads > 1 || (a.state != nullptr && a.multiply_adds >= kWorthPieces)) return run_planned(a, scratch, status);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const simdattn_exec exec = exec_of(a.target, scratch->memory, scratch->bytes);
    *status = library.attention(a.problem, &exec);
    if (status->code != Code::kWorkspace) return Outcome::kDone;
    // The working memory of this thread is too small for such a problem; nothing was written.
    simdattn_plan plan;
    if (library.attention_plan(a.problem, &plan, &exec).code != Code::kOk) return Outcome::kDone;
    if (!grow(scratch, plan.workspace_bytes)) return Outcome::kNoMemory;
  }
  return Outcome::kDone;
}

bool run_by_python(const Running& what, Scratch* scratch, Status* status) {
  const auto* problem = reinterpret_cast<const simdattn_attention_problem*>(what.block + what.parts[0]);
  const int64_t multiply_adds = work_of(*problem);
  const int threads = is_worth_threads(multiply_adds) ? most_threads(what) : 1;
  if (threads < 0) return false;
  PyThreadState* state = PyEval_SaveThread();
  const Outcome outcome =
      run_attention({problem, what.target, multiply_adds, threads, what.tensor, state}, scratch, status);
  PyEval_RestoreThread(state);
  if (outcome == Outcome::kNoMemory) PyErr_NoMemory();
  return outcome == Outcome::kDone;
}

// Working memory of a thread that Python need not know of.
pthread_key_t scratch_key;
pthread_once_t scratch_once = PTHREAD_ONCE_INIT;

void free_scratch_of_thread(void* scratch) {
  std::free(static_cast<Scratch*>(scratch)->memory);
  std::free(scratch);
}

Scratch* scratch_of_thread() {
  pthread_once(&scratch_once, [] { pthread_key_create(&scratch_key, free_scratch_of_thread); });
  auto* scratch = static_cast<Scratch*>(pthread_getspecific(scratch_key));
  if (scratch == nullptr) {
    scratch = static_cast<Scratch*>(std::calloc(1, sizeof(Scratch)));
    if (scratch != nullptr) pthread_setspecific(scratch_key, scratch);
  }
  return scratch;
}

// ---- The others -----------------------------------------------------------------------------------------------------

template <class T>
T* part(const Running& what, int i) {
  return what.parts[i] < 0 ? nullptr : reinterpret_cast<T*>(what.block + what.parts[i]);
}

// Parts: k, v, the store of keys, that of values, options of the check, of keys, of values, lengths, rows that each
// sequence gets. Values are checked before keys are written, then both are stored, and lengths rise.
Status append(const Running& what, const simdattn_exec& exec) {
  const auto* k = part<const simdattn_const_view4>(what, 0);
  const auto* v = part<const simdattn_const_view4>(what, 1);
  const auto* keys = part<const simdattn_kv>(what, 2);
  const auto* values = part<const simdattn_kv>(what, 3);
  Status status = library.kv_append(v, nullptr, values, part<const simdattn_append_options>(what, 4), &exec);
  if (status.code != Code::kOk) return status;
  status = library.kv_append(k, nullptr, keys, part<const simdattn_append_options>(what, 5), &exec);
  if (status.code != Code::kOk) return status;
  return library.kv_append(v, nullptr, values, part<const simdattn_append_options>(what, 6), &exec);
}

Status call(const Running& what) {
  const simdattn_exec exec = exec_of(what.target, nullptr, 0);
  switch (what.function) {
    case kRope:
      return library.rope(part<const simdattn_const_view4>(what, 0), part<const simdattn_const_view2>(what, 1),
                          part<const simdattn_const_view2>(what, 2), part<const simdattn_positions>(what, 3),
                          part<const simdattn_view4>(what, 4), part<const simdattn_rope_options>(what, 5), &exec);
    case kSoftmax:
      return library.masked_softmax(part<const simdattn_const_view4>(what, 0), part<const simdattn_view4>(what, 1),
                                    part<const simdattn_scoring>(what, 2), part<const simdattn_view3>(what, 3), &exec);
    default: return append(what, exec);
  }
}

}  // namespace

bool run(const Running& what, Status* status) {
  if (what.function == kAttention) {
    PyObject* held = hold_scratch();
    if (held == nullptr) return false;
    scratch_of(held)->busy = true;
    const bool good = run_by_python(what, scratch_of(held), status);
    scratch_of(held)->busy = false;
    Py_DECREF(held);
    return good;
  }
  PyThreadState* state = PyEval_SaveThread();
  *status = call(what);
  PyEval_RestoreThread(state);
  return true;
}

bool run_by_torch(const simdattn_attention_problem& problem, const simdattn_target* target, int threads,
                  simdattn_status* status) {
  Scratch* scratch = scratch_of_thread();
  return scratch != nullptr &&
         run_attention({&problem, target, work_of(problem), threads, true, nullptr}, scratch, status) == Outcome::kDone;
}

}  // namespace simdattn_python

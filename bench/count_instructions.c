// A plug-in for qemu's user mode: prints how many instructions the emulated program executes between its first and
// second marker, its third and fourth, and so on. A marker is a system call of the number kMarker, which no kernel has.
// Distributions that build qemu with plug-ins do not install qemu-plugin.h, so what is used of it is declared here.
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;
typedef void BlockCallback(uint64_t plugin, struct qemu_plugin_tb* block);
typedef void ExecCallback(unsigned cpu, void* data);
typedef void SyscallCallback(uint64_t plugin, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                             uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t plugin, BlockCallback* callback);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb* block, ExecCallback* callback, int flags, void* data);
void qemu_plugin_register_vcpu_syscall_cb(uint64_t plugin, SyscallCallback* callback);

enum { kMarker = 0x7a11 };  // also in count_calls.cc and llama_tokens.cc
int qemu_plugin_version = 1;
static uint64_t executed, before;

static void count(unsigned cpu, void* instructions) {
  (void)cpu;
  executed += (uintptr_t)instructions;
}

static void translate(uint64_t plugin, struct qemu_plugin_tb* block) {
  (void)plugin;
  qemu_plugin_register_vcpu_tb_exec_cb(block, count, 0, (void*)qemu_plugin_tb_n_insns(block));
}

static void mark(uint64_t plugin, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4,
                 uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  (void)plugin, (void)cpu, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
  if (number != kMarker) return;
  if (before != 0) dprintf(1, "%" PRIu64 "\n", executed - before);
  before = before != 0 ? 0 : executed;
}

int qemu_plugin_install(uint64_t plugin, const void* info, int argc, char** argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(plugin, translate);
  qemu_plugin_register_vcpu_syscall_cb(plugin, mark);
  return 0;
}

// Adds the plain loops as contestants of a case.
#ifndef SIMDATTN_BENCH_PEERS_H_
#define SIMDATTN_BENCH_PEERS_H_

#include <functional>
#include <string>

#include "bench/harness.h"
#include "bench/loops.h"
#include "bench/machine.h"

namespace bench {

/// `make` turns the loops of one instruction set into the call that does the case's work.
template <class Make>
void add_loops(Prepared& p, Make make) {
  for (const Isa* isa : runnable_isas()) {
    if (const Loops* loops = find_loops(isa->name)) {
      p.peers.push_back({std::string("loop/") + isa->name, isa->name, make(*loops)});
    }
  }
}

}  // namespace bench

#endif  // SIMDATTN_BENCH_PEERS_H_

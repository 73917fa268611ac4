// The libraries to compare with, and the exact result that all are checked against.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/peers/peer.h"

namespace bench {

/// Loads every module beside this program; without it there are the plain loops alone. Call it first: some libraries
/// read the environment when they are loaded.
void load_peers();
bool peers_loaded();
/// Name and reason of each that is not here, or name and settings of each that is.
std::vector<std::pair<std::string, std::string>> missing_peers();
std::vector<std::pair<std::string, std::string>> peer_settings();

/// Those that do such work; the loops among them.
std::vector<const Peer*> peers_for(const Work& work);

/// Elements [first, first + count) of the result, in float64 from the numbers as they are stored.
std::vector<double> exact(const Work& work, size_t first, size_t count);

/// For each library (and this one) and kind of work: whether the bits of a result change with the number of threads,
/// and with what else stands in the batch. Name of library and work; what was seen.
std::vector<std::pair<std::string, std::string>> peer_bits();

}  // namespace bench

// A ring of MPI ranks in which nobody waits for ever: whoever waits looks for signs of life of the neighbours, and a
// rank that gives none is named by all others.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

enum Tag : int { kState = 1, kResult, kAlive, kLost };

/// This rank and its neighbours. Nothing here blocks: whoever waits looks for signs of life meanwhile.
class Ring {
 public:
  explicit Ring(double patience) : patience_(patience) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    meet();
  }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int next() const { return (rank_ + 1) % size_; }
  int previous() const { return (rank_ + size_ - 1) % size_; }
  bool first() const { return rank_ == 0; }
  bool last() const { return rank_ + 1 == size_; }

  MPI_Request send(const std::vector<float>& numbers, int to, Tag tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    sent_ += numbers.size() * sizeof(float);
    expect(MPI_Isend(numbers.data(), static_cast<int>(numbers.size()), MPI_FLOAT, to, tag, MPI_COMM_WORLD, &request),
           to);
    return request;
  }
  MPI_Request receive(std::vector<float>& numbers, int from, Tag tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    expect(MPI_Irecv(numbers.data(), static_cast<int>(numbers.size()), MPI_FLOAT, from, tag, MPI_COMM_WORLD, &request),
           from);
    return request;
  }
  bool done(MPI_Request& request) {
    int yes = 0;
    expect(MPI_Test(&request, &yes, MPI_STATUS_IGNORE), previous());
    return yes != 0;
  }
  /// Until `ready()`. A neighbour that is silent for longer than `patience` is lost, and so is the computation.
  template <class Ready>
  void wait_until(const Ready& ready) {
    const auto start = Clock::now();
    while (!ready()) {
      look();
      for (const int peer : {previous(), next()}) {
        if (seconds_since(std::max(start, heard_[peer == next()])) > patience_) lost(peer, rank_);
      }
      if (seconds_since(start) > 1e-3) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  void wait(MPI_Request& request) {
    wait_until([&] { return done(request); });
  }
  void meet() {
    MPI_Request request = MPI_REQUEST_NULL;
    expect(MPI_Ibarrier(MPI_COMM_WORLD, &request), next());
    wait(request);
  }

  /// To be called now and then, also by who works: says "alive" to the neighbours, hears them, and hears of lost ranks.
  void look() {
    if (size_ == 1 || seconds_since(looked_) < 50e-6) return;  // over TCP a look is a system call
    looked_ = Clock::now();
    if (seconds_since(said_) > patience_ / 4) {
      said_ = Clock::now();
      for (const int peer : {previous(), next()}) tell(peer, kAlive, &rank_);
    }
    for (int found = 1; found != 0;) {
      MPI_Status status;
      expect(MPI_Iprobe(MPI_ANY_SOURCE, kAlive, MPI_COMM_WORLD, &found, &status), next());
      if (found != 0) {
        take(status.MPI_SOURCE, kAlive);
        for (const int right : {0, 1}) {
          if (status.MPI_SOURCE == (right != 0 ? next() : previous())) heard_[right] = Clock::now();
        }
      }
    }
    int found = 0;
    MPI_Status status;
    expect(MPI_Iprobe(MPI_ANY_SOURCE, kLost, MPI_COMM_WORLD, &found, &status), next());
    if (found != 0) lost(take(status.MPI_SOURCE, kLost), status.MPI_SOURCE);
  }
  size_t sent() const { return sent_; }

 private:
  /// Without waiting that it is received: the peer may be the one that is lost.
  void tell(int peer, Tag tag, const int* number) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(number, 1, MPI_INT, peer, tag, MPI_COMM_WORLD, &request) == MPI_SUCCESS) MPI_Request_free(&request);
  }
  int take(int from, Tag tag) {
    int number = 0;
    MPI_Recv(&number, 1, MPI_INT, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return number;
  }
  /// An error of MPI that has to do with `peer`.
  void expect(int code, int peer) {
    if (code != MPI_SUCCESS) lost(peer, rank_);
  }
  /// Says so, tells all others, and ends the job once they have had time to say so too.
  [[noreturn]] void lost(int who, int says) {
    if (says == rank_) {
      std::fprintf(stderr, "ring_attention: rank %d: rank %d is lost: no sign of life for %g s\n", rank_, who,
                   patience_);
      lost_ = who;
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_ && peer != who) tell(peer, kLost, &lost_);
      }
    } else {
      std::fprintf(stderr, "ring_attention: rank %d: rank %d is lost, says rank %d\n", rank_, who, says);
    }
    const auto start = Clock::now();
    for (int found = 0; seconds_since(start) < 1;) {  // keeps messages going
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }

  double patience_;
  int rank_ = 0, size_ = 1, lost_ = 0;
  Clock::time_point heard_[2] = {Clock::now(), Clock::now()}, said_ = Clock::now(), looked_;
  size_t sent_ = 0;
};

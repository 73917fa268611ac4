// The command line of the examples: names with values, flags, files; --help; and a sentence about what is wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

class CommandLine {
 public:
  /// usage: what --help prints, and what follows a complaint about names.
  explicit CommandLine(std::string usage) : usage_(std::move(usage)) {}

  CommandLine& flag(const std::string& name, bool* on);
  CommandLine& text(const std::string& name, std::string* value);
  /// A whole number from `first` to `last`.
  CommandLine& whole(const std::string& name, int64_t* value, int64_t first, int64_t last);
  /// Anything else: `set` throws std::runtime_error if it does not like the value.
  CommandLine& option(const std::string& name, std::function<void(const std::string&)> set);

  /// What is neither a name nor its value. Prints the usage and ends the program where --help is found; throws
  /// std::runtime_error with a sentence.
  std::vector<std::string> parse(int argc, char** argv) const;

  const std::string& usage() const { return usage_; }

 private:
  struct Option {
    std::string name;
    std::function<void(const std::string&)> set;  // empty: a flag
    bool* on;
  };
  std::string usage_;
  std::vector<Option> options_;
};

/// The number that `text` is, from `first` to `last`. Throws std::runtime_error with a sentence that begins with
/// `name`.
int64_t whole_number(const std::string& name, const std::string& text, int64_t first, int64_t last);

/// body(), and what it returns. An exception becomes "PROGRAM: sentence" on stderr and exit status 1.
int run_program(const char* program, const std::function<int()>& body);

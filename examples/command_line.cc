#include "command_line.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

int64_t whole_number(const std::string& name, const std::string& text, int64_t first, int64_t last) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end && value >= first && value <= last) return value;
  std::string range = " takes a whole number from " + std::to_string(first);
  if (last != std::numeric_limits<int64_t>::max()) range += " to " + std::to_string(last);
  throw std::runtime_error(name + range + ", not \"" + text + "\"");
}

CommandLine& CommandLine::flag(const std::string& name, bool* on) {
  options_.push_back({name, {}, on});
  return *this;
}

CommandLine& CommandLine::option(const std::string& name, std::function<void(const std::string&)> set) {
  options_.push_back({name, std::move(set), nullptr});
  return *this;
}

CommandLine& CommandLine::text(const std::string& name, std::string* value) {
  return option(name, [value](const std::string& given) { *value = given; });
}

CommandLine& CommandLine::whole(const std::string& name, int64_t* value, int64_t first, int64_t last) {
  return option(name, [=](const std::string& given) { *value = whole_number(name, given, first, last); });
}

std::vector<std::string> CommandLine::parse(int argc, char** argv) const {
  std::vector<std::string> rest;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help") {
      std::printf("%s\n", usage_.c_str());
      std::exit(0);
    }
    if (!word.starts_with("--")) {
      rest.push_back(word);
      continue;
    }
    const Option* found = nullptr;
    for (const Option& o : options_) {
      if (o.name == word) found = &o;
    }
    if (found == nullptr) throw std::runtime_error("unknown option " + word + "\n" + usage_);
    if (!found->set) {
      *found->on = true;
    } else if (i + 1 == argc) {
      throw std::runtime_error(word + " needs a value\n" + usage_);
    } else {
      found->set(argv[++i]);
    }
  }
  return rest;
}

int run_program(const char* program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: not enough memory\n", program);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
  }
  return 1;
}

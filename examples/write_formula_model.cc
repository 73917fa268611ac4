// Writes a tiny model for the programs that take one, where no trained one is at hand.
//
//   write_formula_model DIRECTORY
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "command_line.h"
#include "formula_model.h"

namespace {

constexpr char kUsage[] =
    "usage: write_formula_model DIRECTORY\n"
    "Writes model.bin and tokenizer.bin, a llama2.c model whose weights are a formula, into a directory that exists.";

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  if (!out.flush()) throw std::runtime_error(path.string() + ": cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("write_formula_model", [&] {
    const std::vector<std::string> words = CommandLine(kUsage).parse(argc, argv);
    if (words.size() != 1) throw std::runtime_error(kUsage);
    write(std::filesystem::path(words[0]) / "model.bin", FormulaModel().checkpoint());
    write(std::filesystem::path(words[0]) / "tokenizer.bin", FormulaModel::tokenizer());
    return 0;
  });
}

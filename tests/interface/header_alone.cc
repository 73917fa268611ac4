// The public header compiles alone, first in the file, without exceptions and without run-time type information.
#include "simdattn/simdattn.h"

int main() { return simdattn::targets().size() == 0 ? 1 : 0; }

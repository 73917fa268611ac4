// What nearly every suite includes, compiled once. Sources include what they need all the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"

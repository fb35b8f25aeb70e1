// Training, testing and filtering. Compiled once per level of the CPU (LEVEL names it); everything but the table at the
// end is private to a level, so that no level can run another one's code.
#include "kernels.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#ifdef __aarch64__
#include <arm_neon.h>
#endif

namespace fedfilt {
namespace {

#include "products.h"

#include "model.h"

#include "forward.h"

#include "backward.h"

#include "training.h"

#include "filtering.h"

}  // namespace

const Kernels LEVEL = {train, test, predict, apply, solve<float, float>, solve<float, double>, solve<double, double>};

}  // namespace fedfilt

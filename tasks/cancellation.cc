#include "tasks/cancellation.h"

namespace cariama {

task_cancelled::~task_cancelled() = default;

}  // namespace cariama

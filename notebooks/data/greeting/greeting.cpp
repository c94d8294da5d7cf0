#include "greeting.h"

std::string greeting(const std::string &whom) { return "hello from several files, " + whom; }

#include <iostream>

#include "greeting.h"

int main() { std::cout << greeting("sandbox") << "\n"; }

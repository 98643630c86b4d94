# ibid_library, ibid_program, ibid_test: the three kinds of targets, with the warnings and sanitizers they share.

add_library(ibid_flags INTERFACE)
target_include_directories(ibid_flags INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}>)
target_compile_options(ibid_flags INTERFACE
  $<BUILD_INTERFACE:-Wall> $<BUILD_INTERFACE:-Wextra> $<BUILD_INTERFACE:-Wno-unused-parameter>
  $<BUILD_INTERFACE:-Wno-missing-field-initializers>)
if(IBID_SANITIZER STREQUAL "address")
  target_compile_options(ibid_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=address,undefined> $<BUILD_INTERFACE:-fno-sanitize-recover=undefined>
    $<BUILD_INTERFACE:-fno-omit-frame-pointer>)
  target_link_options(ibid_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=address,undefined>)
elseif(IBID_SANITIZER STREQUAL "thread")
  target_compile_options(ibid_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=thread> $<BUILD_INTERFACE:-Wno-tsan>)
  target_link_options(ibid_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=thread>)
elseif(IBID_SANITIZER)
  message(FATAL_ERROR "IBID_SANITIZER=${IBID_SANITIZER}: use address, thread or nothing")
endif()

# ibid_library(name SOURCES a.cc ... LIBS public libraries ...)
function(ibid_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ibid_flags ${ARG_LIBS})
endfunction()

# ibid_program(name SOURCES ... LIBS ...): a binary in build/<preset>/bin
function(ibid_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ibid_flags ${ARG_LIBS})
endfunction()

# ibid_test(name SOURCES ... LIBS ... [LABEL unit] [TIMEOUT seconds] [ARGS ...] [TSAN] [ASAN]): one ctest
# entry a program.
# Labels are the kinds of CONTRIBUTING.md: unit, equivalence, golden, integration, simulation, fault, fuzz, parity.
# TSAN, ASAN: it also belongs to the target tsan_tests, asan_tests, and carries the label tsan, asan.
add_custom_target(tsan_tests)
add_custom_target(asan_tests)
function(ibid_test name)
  cmake_parse_arguments(ARG "TSAN;ASAN" "LABEL;TIMEOUT" "SOURCES;LIBS;ARGS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(IBID_SANITIZER)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ibid_flags ${ARG_LIBS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    IBID_SHARED_DATA="${IBID_SHARED_DATA}" IBID_SOURCE_DIR="${CMAKE_SOURCE_DIR}" IBID_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  if(ARG_TSAN)
    add_dependencies(tsan_tests ${name})
    list(APPEND ARG_LABEL tsan)
  endif()
  if(ARG_ASAN)
    add_dependencies(asan_tests ${name})
    list(APPEND ARG_LABEL asan)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
  if(IBID_SANITIZER STREQUAL "thread")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
      "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${CMAKE_SOURCE_DIR}/tests/tsan_suppressions.txt")
  endif()
endfunction()

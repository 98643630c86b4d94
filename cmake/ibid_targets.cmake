# ibid_library, ibid_program, ibid_test: the three kinds of targets, with the warnings and sanitizers they share.

add_library(ibid_flags INTERFACE)
target_include_directories(ibid_flags INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}>)
target_compile_options(ibid_flags INTERFACE
  $<BUILD_INTERFACE:-pthread> $<BUILD_INTERFACE:-Wall> $<BUILD_INTERFACE:-Wextra> $<BUILD_INTERFACE:-Wno-unused-parameter>
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

# Headers of the distribution that most sources include are compiled once for all libraries, and once for all tests:
# half of the time of a build. The donors are never linked.
function(ibid_pch kind)
  file(WRITE ${CMAKE_BINARY_DIR}/pch/${kind}.cc "")
  add_library(ibid_${kind}_pch OBJECT ${CMAKE_BINARY_DIR}/pch/${kind}.cc)
  target_precompile_headers(ibid_${kind}_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch/${kind}.h)
  target_link_libraries(ibid_${kind}_pch PRIVATE ibid_flags absl::flat_hash_map absl::statusor fmt::fmt ${ARGN})
endfunction()
if(IBID_PCH)
  ibid_pch(library)
endif()
if(IBID_PCH AND IBID_BUILD_TESTS)
  ibid_pch(test GTest::gmock)
  # Tests are programs.
  set_target_properties(ibid_test_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(ibid_test_pch PRIVATE -fPIE)
endif()

# ibid_library(name SOURCES a.cc ... LIBS public libraries ... [NO_PCH])
# NO_PCH: its sources are compiled with options of their own.
function(ibid_library name)
  cmake_parse_arguments(ARG "NO_PCH" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ibid_flags ${ARG_LIBS})
  if(IBID_PCH AND NOT ARG_NO_PCH)
    target_precompile_headers(${name} REUSE_FROM ibid_library_pch)
  endif()
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
  if(IBID_PCH)
    target_precompile_headers(${name} REUSE_FROM ibid_test_pch)
  endif()
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

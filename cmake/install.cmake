# What `cmake --install` puts under a prefix: the programs, the client library, and a CMake package for
#   find_package(ibid) -> ibid::client
# The package works wherever the prefix is moved. cmake/ibid-config.cmake.in finds the outside libraries that the exported targets
# name: what core, proto, transport and client link against stands there too.
include(CMakePackageConfigHelpers)

set(IBID_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ibid)
set(IBID_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR}/ibid)  # headers include each other as "core/..." and "client/..."

target_include_directories(ibid_flags INTERFACE $<INSTALL_INTERFACE:${IBID_INCLUDE_DIR}>)
target_compile_features(ibid_flags INTERFACE $<INSTALL_INTERFACE:cxx_std_20>)

foreach(part flags core proto transport client)
  set_target_properties(ibid_${part} PROPERTIES EXPORT_NAME ${part})
endforeach()
install(TARGETS ibid_flags ibid_core ibid_proto ibid_transport ibid_client EXPORT ibid-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT ibid-targets NAMESPACE ibid:: DESTINATION ${IBID_PACKAGE_DIR})

file(GLOB IBID_CORE_HEADERS ${CMAKE_SOURCE_DIR}/core/*.h)
install(FILES ${IBID_CORE_HEADERS} DESTINATION ${IBID_INCLUDE_DIR}/core)
install(FILES ${CMAKE_SOURCE_DIR}/client/blocks_in_place.h ${CMAKE_SOURCE_DIR}/client/client.h ${CMAKE_SOURCE_DIR}/client/store_watch.h
              ${CMAKE_SOURCE_DIR}/client/inference_channel.h
        DESTINATION ${IBID_INCLUDE_DIR}/client)

# A program that was not built is left out.
foreach(program ibid ibid-server ibid-worker)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL)
  endif()
endforeach()

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/ibid-config.cmake.in ${CMAKE_BINARY_DIR}/ibid-config.cmake
                              INSTALL_DESTINATION ${IBID_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ibid-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ibid-config.cmake ${CMAKE_BINARY_DIR}/ibid-config-version.cmake
        DESTINATION ${IBID_PACKAGE_DIR})

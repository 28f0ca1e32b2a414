# Checks of the project as a whole, beside the tests of its code.

set(checks "${CMAKE_CURRENT_SOURCE_DIR}/checks")

# cariama_check(NAME SECONDS PROCESSORS COMMAND...)
function(cariama_check name seconds processors)
  # ctest starts long checks of one processor first. Those of two run last, one at a time: when a test ends,
  # ctest starts tests that fit into the processors that are then free, so that two are rarely free at once.
  set(cost 0)
  if(seconds GREATER 250)
    set(cost 1000)
  endif()
  add_test(NAME "${CARIAMA_TEST_PREFIX}${name}" COMMAND ${ARGN})
  set_tests_properties("${CARIAMA_TEST_PREFIX}${name}" PROPERTIES
    LABELS check TIMEOUT ${seconds} COST ${cost} PROCESSORS ${processors} SKIP_RETURN_CODE 77
    ENVIRONMENT "CMAKE_BUILD_PARALLEL_LEVEL=${processors}")
endfunction()

if(NOT CARIAMA_SANITIZE AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # once in all builds
  cariama_check(package 300 1 "${checks}/package" "${PROJECT_BINARY_DIR}" "${PROJECT_BINARY_DIR}/package")
  cariama_check(elf 120 1 "${checks}/elf" "${PROJECT_BINARY_DIR}")
  cariama_check(elf_self_test 60 1 "${checks}/elf" --self-test "${CMAKE_CXX_COMPILER}")
  if(TARGET contract_test)
    cariama_check(contract_counts 60 1 "${checks}/contract_counts" "$<TARGET_FILE:contract_test>")
  endif()
endif()

if(NOT CARIAMA_CHECKS)
  return()
endif()
if(CARIAMA_PROGRAMS)  # the check of the package covers those that are installed
  get_directory_property(programs DIRECTORY "${PROJECT_SOURCE_DIR}/bench" BUILDSYSTEM_TARGETS)
  list(FILTER programs INCLUDE REGEX "^bench_")
  get_property(examples GLOBAL PROPERTY CARIAMA_EXAMPLES)
  list(APPEND programs ${examples})
  list(TRANSFORM programs REPLACE "(.+)" "$<TARGET_FILE:\\1>")
  if(programs)
    cariama_check(programs 120 1 "${checks}/programs" "${PROJECT_VERSION}" ${programs})
  endif()
endif()
if(TARGET bench_registration)
  cariama_check(registration 180 1 "${checks}/registration" "$<TARGET_FILE:bench_registration>"
    "${PROJECT_SOURCE_DIR}/bench/plot_registered")
endif()
if(TARGET cariama-hex)
  cariama_check(hex_browser 600 2 "${CMAKE_CURRENT_SOURCE_DIR}/hex/web/browser_test"
    "$<TARGET_FILE:cariama-hex>")
endif()
cariama_check(format 120 1 "${checks}/format")
cariama_check(house 120 1 "${checks}/house")
cariama_check(guides 60 1 "${checks}/guides")
cariama_check(waits 60 1 "${checks}/waits")
cariama_check(waits_self_test 60 1 "${checks}/waits" --self-test)
cariama_check(models 600 1
  "${CMAKE_CURRENT_SOURCE_DIR}/dtutils/models/check" "${CMAKE_CURRENT_BINARY_DIR}/models")

# Every header includes what it uses. Not in unity builds: it takes minutes, and the preset dev also compiles each
# source by itself.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/dtutils/*.h" "${PROJECT_SOURCE_DIR}/dsfabric/*.h"
  "${PROJECT_SOURCE_DIR}/riutils/*.h" "${PROJECT_SOURCE_DIR}/tasks/*.h"
  "${PROJECT_SOURCE_DIR}/dht/*.h" "${PROJECT_SOURCE_DIR}/bdd/*.h" "${PROJECT_SOURCE_DIR}/mcts/*.h" "${PROJECT_SOURCE_DIR}/hex/*.h"
  "${PROJECT_SOURCE_DIR}/tests/*.h" "${PROJECT_SOURCE_DIR}/bench/*.h")
list(APPEND headers "${PROJECT_SOURCE_DIR}/cariama.h")
cariama_leave_out(headers)
list(TRANSFORM headers REPLACE "^${PROJECT_SOURCE_DIR}/" "")
list(JOIN headers "\n" lines)
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/includes.list" CONTENT "${lines}\n" @ONLY)
if(NOT CMAKE_UNITY_BUILD)
  cariama_check(includes 900 1 "${checks}/includes" "${flags}" "${CMAKE_CURRENT_BINARY_DIR}/includes.list")
endif()
cariama_check(package_static 300 1
  "${checks}/package" --static "${PROJECT_BINARY_DIR}" "${PROJECT_BINARY_DIR}/package_static")
cariama_check(tidy 1200 1 "${checks}/tidy" "${PROJECT_BINARY_DIR}")

# Jobs that srun and sbatch start, on one node and on two.
if(TARGET launcher_test AND TARGET failure_reports_test AND TARGET start_test AND TARGET cariama-run
    AND TARGET example_every_call)
  cariama_check(slurm 300 2
    "${CMAKE_CURRENT_SOURCE_DIR}/slurm/jobs-under-slurm" "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
endif()

# cariama_vm_check(NAME SECONDS COMMAND...): a check that boots virtual machines. One runs at a time and
# counts as one processor, so that the tests of the host run beside it. ctest starts these first (COST).
function(cariama_vm_check name seconds)
  cariama_check(${name} ${seconds} 1 ${ARGN})
  set_tests_properties("${CARIAMA_TEST_PREFIX}${name}" PROPERTIES
    LABELS verbs COST 1000 RESOURCE_LOCK virtual_machine)
endfunction()

# The suites of the virtual machine: all programs of a label in one boot.
function(cariama_vm_suite label)
  get_property(programs GLOBAL PROPERTY CARIAMA_VM_${label})
  if(NOT programs)
    return()
  endif()
  list(JOIN programs "\n" lines)
  set(list "${CMAKE_CURRENT_BINARY_DIR}/${label}.list")
  file(GENERATE OUTPUT "${list}" CONTENT "${lines}\n")
  cariama_vm_check(${label}_vm 1800
    "${CMAKE_CURRENT_SOURCE_DIR}/rdma_vm/run-suite" "${list}" --timeout 1700 ${ARGN})
  set_tests_properties("${CARIAMA_TEST_PREFIX}${label}_vm" PROPERTIES LABELS "${label}")
endfunction()
cariama_vm_suite(verbs --mem 1536)
cariama_vm_suite(numa --numa 2 --devices 2 --gigapages 2 --hugepages 128)
# The sweep of faults (sweep/): a link between two guests that is cut. Not by default, since it takes
# minutes (ctest -C sweep -L sweep): every step over soft-RoCE, and further steps at which the link is cut.
if(TARGET sweep_guests_test)
  set(list "${CMAKE_CURRENT_BINARY_DIR}/cut_link.list")
  file(GENERATE OUTPUT "${list}" CONTENT
    "$<TARGET_FILE:sweep_guests_test> --gtest_filter=*publish*transfers:*all_reduce*all:*finalize*transfers\n")
  cariama_vm_check(cut_link_vm 300 "${CMAKE_CURRENT_SOURCE_DIR}/rdma_vm/run-suite" "${list}"
    --nodes 2 --devices 2 --timeout 250)
  file(GENERATE OUTPUT "${list}.all" CONTENT "$<TARGET_FILE:sweep_guests_test>\n")
  add_test(NAME "${CARIAMA_TEST_PREFIX}sweep_guests_vm" CONFIGURATIONS sweep COMMAND
    "${CMAKE_CURRENT_SOURCE_DIR}/rdma_vm/run-suite" "${list}.all" --nodes 2 --devices 2 --timeout 250)
  set(list "${CMAKE_CURRENT_BINARY_DIR}/sweep_verbs.list")
  set(program "$<TARGET_FILE:sweep_test> --gtest_filter")
  file(GENERATE OUTPUT "${list}" CONTENT
    "${program}=*FaultSweep*verbs:-*_stop_*\n${program}=*FaultSweep*_stop_verbs\n")
  add_test(NAME "${CARIAMA_TEST_PREFIX}sweep_verbs_vm" CONFIGURATIONS sweep COMMAND
    "${CMAKE_CURRENT_SOURCE_DIR}/rdma_vm/run-suite" "${list}" --mem 1536 --timeout 2800)
  foreach(name IN ITEMS sweep_guests_vm sweep_verbs_vm)
    set_tests_properties("${CARIAMA_TEST_PREFIX}${name}" PROPERTIES
      LABELS sweep TIMEOUT 3000 RUN_SERIAL ON SKIP_RETURN_CODE 77)
  endforeach()
endif()
# Jobs over two of them, launched by mpirun: programs of the build, each with its arguments. One boot for all.
set(jobs "")
function(cariama_guests_job)
  foreach(command IN LISTS ARGN)
    string(REGEX MATCH "^[^ ]+" program "${command}")
    if(NOT TARGET ${program})
      return()
    endif()
  endforeach()
  list(TRANSFORM ARGN REPLACE "^([^ ]+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE programs)
  set(jobs ${jobs} ${programs} PARENT_SCOPE)
endfunction()
cariama_guests_job(example_every_call example_key_value_store)
if(TARGET example_every_call)
  cariama_vm_check(slurm_guests_vm 600 "${CMAKE_CURRENT_SOURCE_DIR}/slurm/slurm-in-guests"
    "$<TARGET_FILE:example_every_call>")
endif()
cariama_guests_job(job_protocols_test "job_protocols_test --trust-bytes")
cariama_guests_job(job_search_test
  "cariama-hex analyze --size 7 --iterations 5000 --json --without solver")
# Searches whose table and tasks are divided over two guests: the first levels of some, and complete
# ones, which take ten minutes or more each on a busy machine. Not by default: ctest -C reach -L reach.
if(TARGET cariama-bdd)
  set(reach "${CMAKE_CURRENT_SOURCE_DIR}/rdma_vm/reach-in-guests")
  set(name "${CARIAMA_TEST_PREFIX}reach_guests_vm")
  add_test(NAME ${name} CONFIGURATIONS reach COMMAND "${reach}" -t 1100 "$<TARGET_FILE:cariama-bdd>"
    anderson.4:saturation:3 anderson.4:bfs:4 anderson.4:chaining:1 bakery.4:saturation:3)
  set_tests_properties(${name} PROPERTIES
    LABELS reach TIMEOUT 1200 RUN_SERIAL ON SKIP_RETURN_CODE 77)
  foreach(model IN ITEMS anderson.4 bakery.4)
    foreach(strategy IN ITEMS saturation chaining bfs)
      set(name "${CARIAMA_TEST_PREFIX}reach_guests_${model}_${strategy}_vm")
      add_test(NAME ${name} CONFIGURATIONS reach COMMAND "${reach}" -t 5400
        "$<TARGET_FILE:cariama-bdd>" ${model}:${strategy})
      set_tests_properties(${name} PROPERTIES
        LABELS reach TIMEOUT 5500 RUN_SERIAL ON SKIP_RETURN_CODE 77)
    endforeach()
  endforeach()
endif()
# Guests that share no memory steal started frames from each other, also from a process that is
# stopped.
if(TARGET bench_tasks)
  set(options "--repetitions 1 --stack 4194304 --least_steals 1")
  cariama_guests_job("bench_tasks uts --tree paper8 --model pool --repetitions 1 --stack 4194304")
  cariama_guests_job("bench_tasks btc --iter 2 --depth 10 ${options}"
    "bench_tasks uts --tree paper8 --deque the ${options}" "bench_tasks steal --stopped ${options}")
  # The programs of the slides on task pools, with known results: here, and between guests.
  set(options --model pool --repetitions 1 --workers 3)
  cariama_check(pool_fib 120 1 bench_tasks fib --n 24 ${options})
  cariama_check(pool_uts 120 1 bench_tasks uts --tree paper8 --loop per-child --steal 10 ${options})
  cariama_check(pool_nqueens 120 1 bench_tasks nqueens --n 9 --loop per-child --steal half ${options})
  cariama_check(pool_matmul 120 1 bench_tasks matmul --n 128 --termination scan ${options})
endif()
if(jobs)
  cariama_vm_check(guests_vm 1200 "${CMAKE_CURRENT_SOURCE_DIR}/rdma_vm/mpirun-in-guests" -t 1100 ${jobs})
endif()

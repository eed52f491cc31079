// The one function of this library that Rust's std calls, for versions of wine that lack it.
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T len) {
  return SystemFunction036(data, (ULONG)len);
}

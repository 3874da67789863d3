/* vendor_sdk.c: a library that an adapter needs and that the test keeps where the loader does not look. */
int vendor_sdk_function(void);
int vendor_sdk_function(void) { return 7; }

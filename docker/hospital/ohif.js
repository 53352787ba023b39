// OHIF on the PACS of the same address; nothing is asked elsewhere.
window.config = {
  routerBasename: null, extensions: [], modes: [], customizationService: {'ohif.tours': {$set: []}}, showStudyList: true,
  defaultDataSourceName: 'pacs', maxNumberOfWebWorkers: 1, disableConfirmationPrompts: true,
  dataSources: [{
    namespace: '@ohif/extension-default.dataSourcesModule.dicomweb', sourceName: 'pacs',
    configuration: {
      friendlyName: 'Orthanc', name: 'orthanc', qidoRoot: '/dicom-web', wadoRoot: '/dicom-web',
      wadoUriRoot: '/dicom-web', qidoSupportsIncludeField: false, imageRendering: 'wadors',
      thumbnailRendering: 'wadors', enableStudyLazyLoad: true, supportsFuzzyMatching: false,
      supportsWildcard: true, omitQuotationForMultipartRequest: true,
      bulkDataURI: {enabled: true}, dicomUploadEnabled: false,
    },
  }],
};
